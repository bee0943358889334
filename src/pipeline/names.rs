//! Names that are nearly right.

/// The candidate that a misspelt name most likely stands for, if one is near enough to be worth naming.
pub fn near_miss<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let folded = name.to_lowercase();
    let allowed = (folded.chars().count() / 3).clamp(1, 3);
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&folded, &candidate.to_lowercase()), candidate))
        .filter(|(distance, candidate)| *distance <= allowed && *distance < candidate.chars().count())
        .min()
        .map(|(_, candidate)| candidate)
}

/// Names joined for a sentence: `a`, `a and b`, `a, b and c`.
pub(crate) fn listed(names: impl IntoIterator<Item = impl ToString>) -> String {
    let mut names: Vec<String> = names.into_iter().map(|name| name.to_string()).collect();
    match names.pop() {
        None => String::new(),
        Some(last) if names.is_empty() => last,
        Some(last) => format!("{} and {last}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_near_names_are_suggested() {
        let names = ["orders", "customers", "id"];
        for (name, expected) in [
            ("order", Some("orders")),
            ("Ordesr", Some("orders")),
            ("costumers", Some("customers")),
            ("payments", None),
            ("x", None),
            ("if", Some("id")),
        ] {
            assert_eq!(near_miss(name, names), expected, "{name}");
        }
    }
}
