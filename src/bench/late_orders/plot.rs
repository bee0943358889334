//! The curve of latency over lag.

use std::error::Error as Cause;

use plotters::prelude::*;

use super::Report;
use crate::error::{Error, Result};

const SIZE: (u32, u32) = (900, 500);
const COLORS: [RGBColor; 3] = [BLUE, RED, GREEN];

/// The latency of late orders over their lag, a line a stage with the median and, lighter, the 99th percentile, as an
/// SVG document.
///
/// # Errors
/// `NOTHING_TO_PLOT` (user) if no order was late.
pub fn plot(reports: &[Report]) -> Result<String> {
    let points: Vec<f64> = reports
        .iter()
        .flat_map(|r| &r.by_lag)
        .flat_map(|lag| [lag.latency.p50_micros, lag.latency.p99_micros])
        .collect();
    let most = reports.iter().flat_map(|r| &r.by_lag).map(|lag| lag.epochs).max();
    let Some(most) = most else {
        return Err(Error::user("NOTHING_TO_PLOT", "no order of the feed came late"));
    };
    let low = points.iter().copied().fold(f64::INFINITY, f64::min).max(1.0);
    let high = points.iter().copied().fold(low, f64::max);
    let mut svg = String::new();
    draw(&mut svg, reports, most, (low / 2.0, high * 2.0))
        .map_err(|e| Error::internal(format!("the plot cannot be drawn: {e}")))?;
    Ok(svg)
}

fn draw(svg: &mut String, reports: &[Report], most: u64, (low, high): (f64, f64)) -> Result<(), Box<dyn Cause>> {
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption("From a late order to the corrected rows", ("sans-serif", 20))
        .margin(15)
        .x_label_area_size(45)
        .y_label_area_size(80)
        .build_cartesian_2d(0u64..most + 1, (low..high).log_scale())?;
    chart.configure_mesh().x_desc("epochs between items and order").y_desc("microseconds").draw()?;
    for (report, color) in reports.iter().zip(COLORS.iter().cycle()) {
        let name = serde_json::to_value(report.stage)?.as_str().unwrap_or_default().to_owned();
        let line = |pick: fn(&super::Lag) -> f64| report.by_lag.iter().map(move |lag| (lag.epochs, pick(lag)));
        let color = *color;
        chart
            .draw_series(LineSeries::new(line(|lag| lag.latency.p50_micros), color.stroke_width(2)))?
            .label(format!("{name}, median"))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        chart
            .draw_series(LineSeries::new(line(|lag| lag.latency.p99_micros), color.mix(0.4)))?
            .label(format!("{name}, 99th percentile"))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.mix(0.4)));
    }
    chart.configure_series_labels().border_style(BLACK.mix(0.3)).background_style(WHITE.mix(0.8)).draw()?;
    area.present()?;
    Ok(())
}
