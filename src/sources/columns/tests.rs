//! Values that fit their column, and values that do not.

use arrow::array::{Array, AsArray};

use super::*;

fn reading() -> Rc<Reading> {
    let instants = Instants::new(None, None, None, &crate::plan::Zone::utc()).unwrap();
    Rc::new(Reading { instants, rescue: true, exact: false, unknown: Some(RefCell::default()), kept: None })
}

fn fit(data_type: &DataType, json: &str) -> (Fit, String) {
    let mut column = Column::new(data_type, &reading(), String::new, true).unwrap();
    let fit = column.append_json(json);
    let array = column.finish().unwrap();
    assert_eq!(array.len(), 1);
    (fit, arrow::util::display::array_value_to_string(&array, 0).unwrap())
}

#[test]
fn json_values_go_into_columns_exactly_or_not_at_all() {
    let decimal = DataType::Decimal128(5, 2);
    let yes: &[(&DataType, &str, &str)] = &[
        (&DataType::Int64, "-9223372036854775808", "-9223372036854775808"),
        (&DataType::Int8, "127", "127"),
        (&DataType::Float64, "1e3", "1000.0"),
        (&DataType::Float64, "\"-Infinity\"", "-inf"),
        (&DataType::Utf8, "1.50", "1.50"),
        (&DataType::Utf8, "\"a\\n\\u00e4\"", "a\nä"),
        (&DataType::Utf8, "{\"a\": [1]}", "{\"a\": [1]}"),
        (&DataType::Boolean, "true", "true"),
        (&decimal, "123.454", "123.45"),
        (&decimal, "-123.455", "-123.46"),
        (&decimal, "\"1.2e2\"", "120.00"),
        (&decimal, "0.004", "0.00"),
        (&decimal, "5e-3", "0.01"),
        (&utc(), "\"1970-01-01T00:00:01Z\"", "1970-01-01T00:00:01Z"),
        (&utc(), "1", "1970-01-01T00:00:01Z"),
        (&DataType::Date32, "\"1970-01-02\"", "1970-01-02"),
    ];
    for (data_type, json, value) in yes {
        assert_eq!(fit(data_type, json), (Fit::Whole, (*value).to_owned()), "{json} as {data_type}");
    }
    let no: &[(&DataType, &str)] = &[
        (&DataType::Int64, "9223372036854775808"),
        (&DataType::Int8, "128"),
        (&DataType::Int32, "1.0"),
        (&DataType::Int32, "\"1\""),
        (&DataType::Float64, "1e999"),
        (&DataType::Float64, "\"1\""),
        (&DataType::Boolean, "1"),
        (&decimal, "1000"),
        (&decimal, "999.995"),
        (&decimal, "true"),
        (&DataType::Date32, "1"),
        (&DataType::Timestamp(TimeUnit::Microsecond, None), "\"1970-01-01T00:00:01Z\""),
        (&DataType::List(Arc::new(Field::new("element", DataType::Int32, true))), "{}"),
    ];
    for (data_type, json) in no {
        assert_eq!(fit(data_type, json), (Fit::Not, String::new()), "{json} as {data_type}");
    }
}

#[test]
fn fields_that_do_not_fit_are_given_back_with_their_place() {
    let inner = DataType::Struct(Fields::from(vec![Field::new("n", DataType::Int32, true)]));
    let fields = Fields::from(vec![
        Field::new("a", DataType::Int32, true),
        Field::new("s", inner, true),
        Field::new("l", DataType::List(Arc::new(Field::new("element", DataType::Int32, true))), true),
    ]);
    let mut group = Group::new(&fields, &reading()).unwrap();
    let json = r#"{"A":1,"a":"x","s":{"n":[1],"m":{"k":2}},"l":[1,"y"],"new":true}"#;
    let Members(members) = serde_json::from_str(json).unwrap();
    assert_eq!(
        group.append(&members),
        Fit::Partly(r#"{"new":true,"a":"x","s":{"m":{"k":2},"n":[1]},"l":[1,"y"]}"#.into())
    );
    let Members(members) = serde_json::from_str(r#"{"S":{"N":5},"A":7}"#).unwrap();
    assert_eq!(group.append(&members), Fit::Whole);
    let columns = group.finish().unwrap();
    let first = columns.first().unwrap().as_primitive::<arrow::datatypes::Int32Type>();
    assert!(first.is_null(0) && first.value(1) == 7);
    let list = columns.get(2).unwrap();
    assert_eq!(arrow::util::display::array_value_to_string(list, 0).unwrap(), "[1, ]");
}

#[test]
fn maps_take_any_key_and_the_last_value_of_one() {
    let pair = Fields::from(vec![Field::new("key", DataType::Utf8, false), Field::new("value", DataType::Int32, true)]);
    let map = DataType::Map(Arc::new(Field::new("key_value", DataType::Struct(pair), false)), false);
    assert_eq!(fit(&map, r#"{"b":1,"a":2,"b":3}"#), (Fit::Whole, "{a: 2, b: 3}".into()));
    assert_eq!(fit(&map, r#"{"b":"x"}"#).0, Fit::Partly(r#"{"b":"x"}"#.into()));
}
