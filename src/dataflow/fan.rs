//! A stateless operator with several outputs.

use silverflow_operators::Epoch;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::Stream;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;

use super::batch::{Batch, Batches};
use crate::cluster::turn;

/// What one batch becomes.
pub struct Fan<A, B, C, D> {
    /// To the first output.
    pub first: Vec<A>,
    /// To the second output.
    pub second: Vec<B>,
    /// To the third output.
    pub third: Vec<C>,
    /// To the fourth output.
    pub fourth: Vec<D>,
}

impl<A, B, C, D> Default for Fan<A, B, C, D> {
    fn default() -> Self {
        Fan { first: Vec::new(), second: Vec::new(), third: Vec::new(), fourth: Vec::new() }
    }
}

type Out<'s, T> = Stream<'s, Epoch, Vec<T>>;

/// Sends what `logic` makes of each batch to four streams. All of it belongs to the batch's epoch.
pub fn fan_out<'s, A, B, C, D>(
    input: Batches<'s>,
    name: &str,
    mut logic: impl FnMut(Batch, &mut Fan<A, B, C, D>) + 'static,
) -> (Out<'s, A>, Out<'s, B>, Out<'s, C>, Out<'s, D>)
where
    A: Clone + 'static,
    B: Clone + 'static,
    C: Clone + 'static,
    D: Clone + 'static,
{
    let mut builder = OperatorBuilder::new(name.to_owned(), input.scope());
    let mut input = builder.new_input(input, Pipeline);
    let (out_a, stream_a) = builder.new_output::<Vec<A>>();
    let (out_b, stream_b) = builder.new_output::<Vec<B>>();
    let (out_c, stream_c) = builder.new_output::<Vec<C>>();
    let (out_d, stream_d) = builder.new_output::<Vec<D>>();
    let mut out_a = OutputBuilder::<_, CapacityContainerBuilder<Vec<A>>>::from(out_a);
    let mut out_b = OutputBuilder::<_, CapacityContainerBuilder<Vec<B>>>::from(out_b);
    let mut out_c = OutputBuilder::<_, CapacityContainerBuilder<Vec<C>>>::from(out_c);
    let mut out_d = OutputBuilder::<_, CapacityContainerBuilder<Vec<D>>>::from(out_d);
    builder.build(move |_| {
        let mut fan = Fan::default();
        move |_| {
            let mut handle_a = out_a.activate();
            let mut handle_b = out_b.activate();
            let mut handle_c = out_c.activate();
            let mut handle_d = out_d.activate();
            input.for_each_stamp(|cap, data| {
                for batch in data.flat_map(|d| d.drain(..)) {
                    turn();
                    logic(batch, &mut fan);
                }
                if !fan.first.is_empty() {
                    handle_a.session(&cap).give_iterator(fan.first.drain(..));
                }
                if !fan.second.is_empty() {
                    handle_b.session(&cap).give_iterator(fan.second.drain(..));
                }
                if !fan.third.is_empty() {
                    handle_c.session(&cap).give_iterator(fan.third.drain(..));
                }
                if !fan.fourth.is_empty() {
                    handle_d.session(&cap).give_iterator(fan.fourth.drain(..));
                }
            });
        }
    });
    (stream_a, stream_b, stream_c, stream_d)
}
