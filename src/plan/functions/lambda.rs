//! Functions that take functions: `transform`, `filter`, `aggregate` and their like.

mod pairs;

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int32Array, ListArray, MapArray, StructArray, UInt32Array, new_null_array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::{take, take_arrays};
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, HigherOrderFunctionArgs, HigherOrderReturnFieldArgs, HigherOrderSignature, HigherOrderUDF,
    HigherOrderUDFImpl, LambdaArgument, LambdaParametersProgress, ValueOrLambda, Volatility,
};

use super::SORTED_BY;
use super::cast::{Misfit, cast, relabel};
use super::function::Settings;
use super::map;
use super::types::{entry, item, list_of, map_of};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Form {
    Transform,
    Filter,
    Exists,
    ForAll,
    Aggregate,
    ZipWith,
    SortBy,
    MapZipWith,
    MapFilter,
    TransformKeys,
    TransformValues,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Lambda {
    name: &'static str,
    form: Form,
    settings: Settings,
    signature: HigherOrderSignature,
}

pub(super) fn functions(settings: &Settings) -> Vec<Arc<HigherOrderUDF>> {
    [
        ("transform", Form::Transform),
        ("filter", Form::Filter),
        ("exists", Form::Exists),
        ("forall", Form::ForAll),
        ("aggregate", Form::Aggregate),
        ("reduce", Form::Aggregate),
        ("zip_with", Form::ZipWith),
        (SORTED_BY, Form::SortBy),
        ("map_zip_with", Form::MapZipWith),
        ("map_filter", Form::MapFilter),
        ("transform_keys", Form::TransformKeys),
        ("transform_values", Form::TransformValues),
    ]
    .into_iter()
    .map(|(name, form)| {
        let signature = HigherOrderSignature::user_defined(Volatility::Immutable);
        Arc::new(HigherOrderUDF::new_from_impl(Lambda { name, form, settings: settings.clone(), signature }))
    })
    .collect()
}

fn field(t: DataType) -> FieldRef {
    Arc::new(Field::new("", t, true))
}

type Arguments<'a, L> = &'a [ValueOrLambda<FieldRef, L>];

fn value<'a, L>(arguments: Arguments<'a, L>, index: usize) -> Option<&'a DataType> {
    match arguments.get(index)? {
        ValueOrLambda::Value(field) => Some(field.data_type()),
        ValueOrLambda::Lambda(_) => None,
    }
}

impl Lambda {
    fn wrong<T>(&self) -> Result<T> {
        plan_err!(
            "{} is written {}",
            self.name,
            match self.form {
                Form::Transform => "transform(array, x -> …) or transform(array, (x, i) -> …)",
                Form::Filter => "filter(array, x -> …) or filter(array, (x, i) -> …)",
                Form::Exists => "exists(array, x -> …)",
                Form::ForAll => "forall(array, x -> …)",
                Form::Aggregate => "aggregate(array, start, (sum, x) -> …[, sum -> …])",
                Form::SortBy => "array_sort(array, (x, y) -> …)",
                Form::MapZipWith => "map_zip_with(map, map, (key, x, y) -> …)",
                Form::ZipWith => "zip_with(array, array, (x, y) -> …)",
                Form::MapFilter => "map_filter(map, (key, value) -> …)",
                Form::TransformKeys => "transform_keys(map, (key, value) -> …)",
                Form::TransformValues => "transform_values(map, (key, value) -> …)",
            }
        )
    }

    /// Whether values and lambdas stand where they must.
    fn checked<V, L>(&self, arguments: &[ValueOrLambda<V, L>]) -> Result<()> {
        let values = match self.form {
            Form::Aggregate | Form::ZipWith | Form::MapZipWith => 2,
            _ => 1,
        };
        let lambdas = arguments.iter().skip(values).filter(|a| matches!(a, ValueOrLambda::Lambda(_))).count();
        let shape_holds = arguments.iter().take(values).all(|a| matches!(a, ValueOrLambda::Value(_)))
            && arguments.len() == values + lambdas
            && (lambdas == 1 || self.form == Form::Aggregate && lambdas == 2);
        if shape_holds { Ok(()) } else { self.wrong() }
    }

    fn misfit(&self) -> Misfit {
        if self.settings.ansi { Misfit::Fail } else { Misfit::Wrap }
    }
}

impl HigherOrderUDFImpl for Lambda {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &HigherOrderSignature {
        &self.signature
    }

    fn coerce_value_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let maps =
            matches!(self.form, Form::MapFilter | Form::TransformKeys | Form::TransformValues | Form::MapZipWith);
        let mut coerced = types.to_vec();
        for (index, t) in coerced.iter_mut().enumerate() {
            if self.form == Form::Aggregate && index == 1 {
                continue;
            }
            *t = match (&*t, maps) {
                (DataType::Null, false) => list_of(DataType::Null),
                (t, false) => match item(t) {
                    Some(of) => list_of(of.clone()),
                    None => return self.wrong(),
                },
                (t, true) => match entry(t) {
                    Some((key, value)) => map_of(key.clone(), value.clone()),
                    None => return self.wrong(),
                },
            };
        }
        Ok(coerced)
    }

    fn lambda_parameters(
        &self,
        _: usize,
        fields: &[ValueOrLambda<FieldRef, Option<FieldRef>>],
    ) -> Result<LambdaParametersProgress> {
        self.checked(fields)?;
        let of = |index: usize| value(fields, index).and_then(item).cloned().unwrap_or(DataType::Null);
        Ok(LambdaParametersProgress::Complete(match self.form {
            Form::Transform | Form::Filter => vec![vec![field(of(0)), field(DataType::Int32)]],
            Form::Exists | Form::ForAll => vec![vec![field(of(0))]],
            Form::ZipWith => vec![vec![field(of(0)), field(of(1))]],
            Form::SortBy => vec![vec![field(of(0)), field(of(0))]],
            Form::MapZipWith => {
                let entry = |index: usize| value(fields, index).and_then(entry);
                let (Some((key, a)), Some((_, b))) = (entry(0), entry(1)) else { return self.wrong() };
                vec![vec![field(key.clone()), field(a.clone()), field(b.clone())]]
            }
            Form::Aggregate => {
                let sum = field(value(fields, 1).cloned().unwrap_or(DataType::Null));
                let mut parameters = vec![vec![Arc::clone(&sum), field(of(0))]];
                if fields.len() > 3 {
                    parameters.push(vec![sum]);
                }
                parameters
            }
            Form::MapFilter | Form::TransformKeys | Form::TransformValues => {
                let (key, value) = match value(fields, 0).and_then(entry) {
                    Some(parts) => parts,
                    None => return self.wrong(),
                };
                vec![vec![field(key.clone()), field(value.clone())]]
            }
        }))
    }

    fn return_field_from_args(&self, args: HigherOrderReturnFieldArgs<'_>) -> Result<FieldRef> {
        let fields = args.arg_fields;
        self.checked(fields)?;
        let first = value(fields, 0).cloned().unwrap_or(DataType::Null);
        let lambda = match fields.last() {
            Some(ValueOrLambda::Lambda(field)) => field.data_type().clone(),
            _ => return self.wrong(),
        };
        Ok(field(match self.form {
            Form::Transform | Form::ZipWith => list_of(lambda),
            Form::SortBy if !lambda.is_integer() => {
                return plan_err!(
                    "the comparison of array_sort gives an integer: less than, equal to or greater than 0"
                );
            }
            Form::Filter | Form::MapFilter | Form::SortBy => first,
            Form::MapZipWith => match entry(&first) {
                Some((key, _)) => map_of(key.clone(), lambda),
                None => return self.wrong(),
            },
            Form::Exists | Form::ForAll => DataType::Boolean,
            Form::Aggregate if fields.len() > 3 => lambda,
            Form::Aggregate => value(fields, 1).cloned().unwrap_or(DataType::Null),
            Form::TransformKeys => match entry(&first) {
                Some((_, value)) => map_of(lambda, value.clone()),
                None => return self.wrong(),
            },
            Form::TransformValues => match entry(&first) {
                Some((key, _)) => map_of(key.clone(), lambda),
                None => return self.wrong(),
            },
        }))
    }

    fn invoke_with_args(&self, args: HigherOrderFunctionArgs) -> Result<ColumnarValue> {
        let rows = args.number_rows;
        let mut values = Vec::new();
        let mut lambdas = Vec::new();
        for argument in &args.args {
            match argument {
                ValueOrLambda::Value(value) => values.push(value.to_array(rows)?),
                ValueOrLambda::Lambda(lambda) => lambdas.push(lambda),
            }
        }
        let (Some(first), Some(lambda)) = (values.first(), lambdas.first()) else { return self.wrong() };
        let result = args.return_field.data_type();
        let array = match self.form {
            Form::Transform => self.transform(first, lambda, result)?,
            Form::Filter => self.filter(first, lambda, result)?,
            Form::SortBy => self.sorted(first, lambda, result)?,
            Form::MapZipWith => match values.get(1) {
                Some(second) => self.map_zip_with(first, second, lambda, result)?,
                None => return self.wrong(),
            },
            Form::Exists => self.quantified(first, lambda, true)?,
            Form::ForAll => self.quantified(first, lambda, false)?,
            Form::ZipWith => match values.get(1) {
                Some(second) => self.zip_with(first, second, lambda, result)?,
                None => return self.wrong(),
            },
            Form::Aggregate => match values.get(1) {
                Some(start) => self.aggregate(first, start, lambda, lambdas.get(1).copied(), result)?,
                None => return self.wrong(),
            },
            Form::MapFilter | Form::TransformKeys | Form::TransformValues => self.over_map(first, lambda, result)?,
        };
        Ok(ColumnarValue::Array(array))
    }
}

/// The elements of an array of lists, each with its row and its place in the list.
struct Elements {
    values: ArrayRef,
    rows: UInt32Array,
    places: ArrayRef,
    lengths: Vec<usize>,
}

fn small(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn elements(offsets: &OffsetBuffer<i32>, nulls: Option<&NullBuffer>, values: &ArrayRef) -> Result<Elements> {
    let (mut at, mut rows, mut places) = (Vec::new(), Vec::new(), Vec::new());
    let mut lengths = Vec::new();
    for row in 0..offsets.len().saturating_sub(1) {
        let own = if nulls.is_some_and(|n| n.is_null(row)) { 0..0 } else { map::ends(offsets, row) };
        lengths.push(own.len());
        for (place, index) in own.enumerate() {
            at.push(small(index));
            rows.push(small(row));
            places.push(i32::try_from(place).unwrap_or(i32::MAX));
        }
    }
    Ok(Elements {
        values: take(values, &UInt32Array::from(at), None)?,
        rows: UInt32Array::from(rows),
        places: Arc::new(Int32Array::from(places)),
        lengths,
    })
}

/// Evaluates a lambda over parameters, each of whose values belongs to a row.
fn evaluated(lambda: &LambdaArgument, parameters: &[&ArrayRef], rows: &UInt32Array) -> Result<ArrayRef> {
    let given: Vec<_> = parameters.iter().map(|p| || Ok(Arc::clone(p))).collect();
    let given: Vec<&dyn Fn() -> Result<ArrayRef>> = given.iter().map(|f| f as &dyn Fn() -> Result<ArrayRef>).collect();
    lambda.evaluate(&given, |captured| Ok(take_arrays(captured, rows, None)?))?.into_array(rows.len())
}

fn list_field(t: &DataType) -> Result<FieldRef> {
    match t {
        DataType::List(field) => Ok(Arc::clone(field)),
        other => plan_err!("an array is wanted, not {other}"),
    }
}

impl Lambda {
    fn of(&self, array: &ArrayRef) -> Result<(ListArray, Elements)> {
        let Some(list) = array.as_list_opt::<i32>() else { return self.wrong() };
        let elements = elements(list.offsets(), list.nulls(), list.values())?;
        Ok((list.clone(), elements))
    }

    fn transform(&self, array: &ArrayRef, lambda: &LambdaArgument, result: &DataType) -> Result<ArrayRef> {
        let (list, all) = self.of(array)?;
        let made = evaluated(lambda, &[&all.values, &all.places], &all.rows)?;
        let field = list_field(result)?;
        let made = relabel(&made, field.data_type())?;
        let offsets = OffsetBuffer::from_lengths(all.lengths);
        Ok(Arc::new(ListArray::try_new(field, offsets, made, list.nulls().cloned())?))
    }

    fn condition(&self, lambda: &LambdaArgument, parameters: &[&ArrayRef], rows: &UInt32Array) -> Result<BooleanArray> {
        let made = evaluated(lambda, parameters, rows)?;
        let made = cast(&made, &DataType::Boolean, self.misfit(), &self.settings.zone)?;
        Ok(made.as_boolean().clone())
    }

    fn filter(&self, array: &ArrayRef, lambda: &LambdaArgument, result: &DataType) -> Result<ArrayRef> {
        let (list, all) = self.of(array)?;
        let kept = self.condition(lambda, &[&all.values, &all.places], &all.rows)?;
        let mut lengths = vec![0; list.len()];
        for (keep, row) in kept.iter().zip(all.rows.values()) {
            if let (Some(true), Some(length)) = (keep, lengths.get_mut(usize::try_from(*row).unwrap_or_default())) {
                *length += 1;
            }
        }
        let field = list_field(result)?;
        let values = relabel(&arrow::compute::filter(&all.values, &kept)?, field.data_type())?;
        let offsets = OffsetBuffer::from_lengths(lengths);
        Ok(Arc::new(ListArray::try_new(field, offsets, values, list.nulls().cloned())?))
    }

    /// Any (or not all) decides; a null leaves it open.
    fn quantified(&self, array: &ArrayRef, lambda: &LambdaArgument, any: bool) -> Result<ArrayRef> {
        let (list, all) = self.of(array)?;
        let holds = self.condition(lambda, &[&all.values], &all.rows)?;
        let mut next = 0;
        let mut found = Vec::with_capacity(list.len());
        for (row, length) in all.lengths.iter().enumerate() {
            let own = next..next + length;
            next += length;
            let value = |at: usize| (!holds.is_null(at)).then(|| holds.value(at));
            found.push(if list.is_null(row) {
                None
            } else if own.clone().any(|at| value(at) == Some(any)) {
                Some(any)
            } else if own.clone().any(|at| value(at).is_none()) {
                None
            } else {
                Some(!any)
            });
        }
        Ok(Arc::new(BooleanArray::from(found)))
    }

    fn zip_with(
        &self,
        first: &ArrayRef,
        second: &ArrayRef,
        lambda: &LambdaArgument,
        result: &DataType,
    ) -> Result<ArrayRef> {
        let (Some(a), Some(b)) = (first.as_list_opt::<i32>(), second.as_list_opt::<i32>()) else { return self.wrong() };
        let (mut left, mut right, mut rows) = (Vec::new(), Vec::new(), Vec::new());
        let (mut lengths, mut there) = (Vec::new(), Vec::new());
        for row in 0..a.len() {
            let present = !a.is_null(row) && !b.is_null(row);
            there.push(present);
            let (of_a, of_b) = (map::ends(a.offsets(), row), map::ends(b.offsets(), row));
            let length = if present { of_a.len().max(of_b.len()) } else { 0 };
            lengths.push(length);
            for place in 0..length {
                left.push((place < of_a.len()).then(|| small(of_a.start + place)));
                right.push((place < of_b.len()).then(|| small(of_b.start + place)));
                rows.push(small(row));
            }
        }
        let left = take(a.values(), &UInt32Array::from(left), None)?;
        let right = take(b.values(), &UInt32Array::from(right), None)?;
        let made = evaluated(lambda, &[&left, &right], &UInt32Array::from(rows))?;
        let field = list_field(result)?;
        let made = relabel(&made, field.data_type())?;
        let offsets = OffsetBuffer::from_lengths(lengths);
        Ok(Arc::new(ListArray::try_new(field, offsets, made, Some(NullBuffer::from(there)))?))
    }

    /// The first elements of all lists, then the second ones, and so on: a step a place and not an element.
    fn aggregate(
        &self,
        array: &ArrayRef,
        start: &ArrayRef,
        merge: &LambdaArgument,
        finish: Option<&LambdaArgument>,
        result: &DataType,
    ) -> Result<ArrayRef> {
        let Some(list) = array.as_list_opt::<i32>() else { return self.wrong() };
        let sum_type = start.data_type().clone();
        let mut sums = Arc::clone(start);
        let longest = (0..list.len()).map(|row| map::ends(list.offsets(), row).len()).max().unwrap_or_default();
        for place in 0..longest {
            let (mut rows, mut at) = (Vec::new(), Vec::new());
            for row in (0..list.len()).filter(|row| !list.is_null(*row)) {
                let own = map::ends(list.offsets(), row);
                if place < own.len() {
                    rows.push(small(row));
                    at.push(small(own.start + place));
                }
            }
            if rows.is_empty() {
                continue;
            }
            let rows = UInt32Array::from(rows);
            let values = take(list.values(), &UInt32Array::from(at), None)?;
            let merged = evaluated(merge, &[&take(&sums, &rows, None)?, &values], &rows)?;
            let merged = cast(&merged, &sum_type, self.misfit(), &self.settings.zone)?;
            let mut sources: Vec<(usize, usize)> = (0..sums.len()).map(|row| (0, row)).collect();
            for (index, row) in rows.values().iter().enumerate() {
                if let Some(source) = sources.get_mut(usize::try_from(*row).unwrap_or_default()) {
                    *source = (1, index);
                }
            }
            sums = arrow::compute::interleave(&[sums.as_ref(), merged.as_ref()], &sources)?;
        }
        let every = UInt32Array::from((0..list.len()).map(small).collect::<Vec<_>>());
        let finished = match finish {
            Some(finish) => evaluated(finish, &[&sums], &every)?,
            None => sums,
        };
        let null = new_null_array(finished.data_type(), 1);
        let places: Vec<(usize, usize)> =
            (0..list.len()).map(|row| if list.is_null(row) { (1, 0) } else { (0, row) }).collect();
        if places.is_empty() {
            return Ok(new_null_array(result, 0));
        }
        relabel(&arrow::compute::interleave(&[finished.as_ref(), null.as_ref()], &places)?, result)
    }

    fn over_map(&self, array: &ArrayRef, lambda: &LambdaArgument, result: &DataType) -> Result<ArrayRef> {
        let Some(of) = array.as_map_opt() else { return self.wrong() };
        let keys = elements(of.offsets(), of.nulls(), of.keys())?;
        let values = elements(of.offsets(), of.nulls(), of.values())?;
        if self.form == Form::TransformValues {
            let made = evaluated(lambda, &[&keys.values, &values.values], &keys.rows)?;
            return rebuilt(of, result, keys.values, made, keys.lengths);
        }
        let (made_keys, kept) = if self.form == Form::TransformKeys {
            (evaluated(lambda, &[&keys.values, &values.values], &keys.rows)?, None)
        } else {
            let kept = self.condition(lambda, &[&keys.values, &values.values], &keys.rows)?;
            (Arc::clone(&keys.values), Some(kept))
        };
        let mut next = 0;
        map::assembled(result, &[made_keys], &[values.values], of.len(), |row, out| {
            let length = keys.lengths.get(row).copied().unwrap_or_default();
            let own = next..next + length;
            next += length;
            let keep = |at: &usize| kept.as_ref().is_none_or(|k| !k.is_null(*at) && k.value(*at));
            out.extend(own.filter(keep).map(|at| ((0, at), (0, at))));
            Ok(!of.is_null(row))
        })
    }
}

fn rebuilt(
    of: &MapArray,
    result: &DataType,
    keys: ArrayRef,
    values: ArrayRef,
    lengths: Vec<usize>,
) -> Result<ArrayRef> {
    let DataType::Map(field, sorted) = result else { return plan_err!("a map is wanted, not {result}") };
    let DataType::Struct(members) = field.data_type() else { return plan_err!("entries of a map are structs") };
    let columns = [keys, values]
        .iter()
        .zip(members)
        .map(|(column, member)| relabel(column, member.data_type()))
        .collect::<Result<Vec<_>>>()?;
    let entries = StructArray::try_new(members.clone(), columns, None)?;
    let offsets = OffsetBuffer::from_lengths(lengths);
    Ok(Arc::new(MapArray::try_new(Arc::clone(field), offsets, entries, of.nulls().cloned(), *sorted)?))
}
