//! `array_except`, which tables are full of: verdicts are what is left of a list of rules.

use std::cell::OnceCell;
use std::collections::HashSet;

use arrow::array::{Array, ArrayRef, ListArray};
use arrow::row::{Row as Key, Rows};
use datafusion::common::Result;

use super::{assembled, element, keys, list, range};
use crate::plan::functions::function::Call;

/// Lists of up to so many elements are searched from end to end.
const FEW: usize = 16;

/// The distinct elements of the first list that are not in the second one, in order. Elements are compared only where
/// nulls do not decide: mostly nothing is left of a list.
pub(super) fn except(call: &Call<'_>) -> Result<ArrayRef> {
    let own = call.array(0)?;
    let own = list(&own)?;
    // One list for all rows stays one.
    let constant = call.arguments.get(1).filter(|argument| argument.constant && call.rows != 1);
    let other = match constant {
        Some(argument) => ArrayRef::clone(&argument.array),
        None => call.array(1)?,
    };
    let other = list(&other)?;
    let other_row = |row: usize| if constant.is_some() { 0 } else { row };
    let elements = Elements { own, other, keys: OnceCell::new() };
    let mut kept = Vec::new();
    assembled(&element(call)?, &[own.values().as_ref()], call.rows, |row, out| {
        let others = range(other, other_row(row));
        if own.is_null(row) || other.is_null(other_row(row)) {
            return Ok(false);
        }
        let no_nulls = others.clone().any(|at| other.values().is_null(at));
        let comparable = others.clone().any(|at| other.values().is_valid(at));
        kept.clear();
        kept.extend(range(own, row).filter(|at| !(no_nulls && own.values().is_null(*at))));
        if comparable && !kept.is_empty() {
            let (keys, there) = elements.keys()?;
            if others.len() <= FEW {
                kept.retain(|at| !others.clone().any(|other| there.row(other) == keys.row(*at)));
            } else {
                let there: HashSet<Key<'_>> = others.map(|at| there.row(at)).collect();
                kept.retain(|at| !there.contains(&keys.row(*at)));
            }
        }
        if kept.len() > FEW {
            let (keys, _) = elements.keys()?;
            let mut distinct: HashSet<Key<'_>> = HashSet::with_capacity(kept.len());
            kept.retain(|at| distinct.insert(keys.row(*at)));
        } else if kept.len() > 1 {
            let (keys, _) = elements.keys()?;
            let mut at = 1;
            while let Some(next) = kept.get(at).copied() {
                let again = kept.iter().take(at).any(|before| keys.row(*before) == keys.row(next));
                if again {
                    kept.remove(at);
                } else {
                    at += 1;
                }
            }
        }
        out.extend(kept.iter().map(|at| (0, *at)));
        Ok(true)
    })
}

/// The elements of both lists, as keys once they are needed.
struct Elements<'a> {
    own: &'a ListArray,
    other: &'a ListArray,
    keys: OnceCell<Vec<Rows>>,
}

impl Elements<'_> {
    fn keys(&self) -> Result<(&Rows, &Rows)> {
        if self.keys.get().is_none() {
            let both = keys(&[self.own.values(), self.other.values()])?;
            let _ = self.keys.set(both);
        }
        match self.keys.get().map(Vec::as_slice) {
            Some([own, other]) => Ok((own, other)),
            _ => datafusion::common::plan_err!("array_except takes two arguments"),
        }
    }
}
