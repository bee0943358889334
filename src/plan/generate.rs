//! `explode` and its like: several rows of one value. In the syntax tree each call becomes a relation beside the one whose
//! values it reads (`lift`), which is planned as the rows with their items, one row an item (`relation`).

mod items;
mod lift;
mod relation;

pub use lift::lift_generators;
pub(super) use relation::Generate;
