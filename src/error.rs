//! What went wrong, where, whose fault it is, and what to do next.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Result with the project's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Whose fault an error is. It decides the exit code of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// The data violates an expectation whose action is FAIL (exit code 1).
    Data,
    /// A mistake in the pipeline, its project file or the command line (exit code 2).
    User,
    /// Something outside failed: a disk, a store, a network, a file that cannot be read (exit code 3).
    External,
    /// A bug of silverflow (exit code 4).
    Internal,
}

impl Fault {
    /// The process exit code for this fault.
    pub fn exit_code(self) -> u8 {
        match self {
            Fault::Data => 1,
            Fault::User => 2,
            Fault::External => 3,
            Fault::Internal => 4,
        }
    }
}

/// A stretch of a definition file, kept with the line it stands in so that a message can show it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Path of the file as the user wrote it, or `<builder>` for definitions made in Rust.
    pub file: String,
    /// 1-based line.
    pub line: usize,
    /// 1-based column, in characters.
    pub column: usize,
    /// Length in characters; 1 where only a point is known.
    pub length: usize,
    /// The text of that line.
    pub text: String,
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// Where an error happened; the parts that are known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The definition at fault.
    pub span: Option<Span>,
    /// Full name of the dataset.
    pub dataset: Option<String>,
    /// Name of the flow.
    pub flow: Option<String>,
    /// Name of the expectation.
    pub rule: Option<String>,
    /// Epoch that was being processed.
    pub epoch: Option<u64>,
}

/// An error with a stable code, a place, a fault and advice.
#[derive(Debug)]
pub struct Error {
    inner: Box<Inner>,
}

#[derive(Debug)]
struct Inner {
    code: &'static str,
    fault: Fault,
    message: String,
    place: Place,
    help: Option<String>,
    details: Vec<String>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
    more: Vec<Error>,
}

impl Error {
    /// An error of the given fault. `code` is SCREAMING_SNAKE_CASE and never changes once released.
    pub fn new(fault: Fault, code: &'static str, message: impl Into<String>) -> Self {
        Error {
            inner: Box::new(Inner {
                code,
                fault,
                message: message.into(),
                place: Place::default(),
                help: None,
                details: Vec::new(),
                source: None,
                more: Vec::new(),
            }),
        }
    }

    /// A mistake of the user.
    pub fn user(code: &'static str, message: impl Into<String>) -> Self {
        Error::new(Fault::User, code, message)
    }

    /// A failure outside the process.
    pub fn external(code: &'static str, message: impl Into<String>) -> Self {
        Error::new(Fault::External, code, message)
    }

    /// A bug of ours.
    pub fn internal(message: impl Into<String>) -> Self {
        Error::new(Fault::Internal, "INTERNAL", message)
    }

    /// Adds the definition at fault, unless a nearer one is known already. A span of no file is no place.
    #[must_use]
    pub fn at(mut self, span: &Span) -> Self {
        if !span.file.is_empty() {
            self.inner.place.span.get_or_insert_with(|| span.clone());
        }
        self
    }

    /// Adds the dataset's name.
    #[must_use]
    pub fn dataset(mut self, name: impl fmt::Display) -> Self {
        self.inner.place.dataset.get_or_insert_with(|| name.to_string());
        self
    }

    /// Adds the flow's name.
    #[must_use]
    pub fn flow(mut self, name: impl fmt::Display) -> Self {
        self.inner.place.flow.get_or_insert_with(|| name.to_string());
        self
    }

    /// Adds the expectation's name.
    #[must_use]
    pub fn rule(mut self, name: impl fmt::Display) -> Self {
        self.inner.place.rule.get_or_insert_with(|| name.to_string());
        self
    }

    /// Adds the epoch.
    #[must_use]
    pub fn epoch(mut self, epoch: u64) -> Self {
        self.inner.place.epoch.get_or_insert(epoch);
        self
    }

    /// Adds what the reader can do about it.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.inner.help = Some(help.into());
        self
    }

    /// Adds lines that belong to the message, such as the rows that violate a rule.
    #[must_use]
    pub fn details(mut self, lines: impl IntoIterator<Item = String>) -> Self {
        self.inner.details.extend(lines);
        self
    }

    /// Adds the error that caused this one.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.inner.source = Some(source.into());
        self
    }

    /// Joins several errors into one; the first one leads. `None` if there are none.
    pub fn all(errors: impl IntoIterator<Item = Error>) -> Option<Error> {
        let mut errors = errors.into_iter();
        let mut first = errors.next()?;
        for mut next in errors {
            let nested = std::mem::take(&mut next.inner.more);
            first.inner.more.push(next);
            first.inner.more.extend(nested);
        }
        Some(first)
    }

    /// The stable code.
    pub fn code(&self) -> &'static str {
        self.inner.code
    }

    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        self.inner.fault
    }

    /// What happened, without place and advice.
    pub fn message(&self) -> &str {
        &self.inner.message
    }

    /// Where it happened.
    pub fn place(&self) -> &Place {
        &self.inner.place
    }

    /// What to do next, where there is advice.
    pub fn advice(&self) -> Option<&str> {
        self.inner.help.as_deref()
    }

    /// Lines that belong to the message.
    pub fn detail_lines(&self) -> &[String] {
        &self.inner.details
    }

    /// The other errors that were found in the same step.
    pub fn others(&self) -> &[Error] {
        &self.inner.more
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { code, message, place, help, details, source, more, .. } = &*self.inner;
        write!(f, "[{code}] {message}")?;
        let mut cause = source.as_deref().map(|e| e as &dyn std::error::Error);
        while let Some(e) = cause {
            write!(f, ": {e}")?;
            cause = e.source();
        }
        let mut known: Vec<String> = Vec::new();
        known.extend(place.dataset.as_ref().map(|x| format!("dataset {x}")));
        known.extend(place.flow.as_ref().map(|x| format!("flow {x}")));
        known.extend(place.rule.as_ref().map(|x| format!("expectation {x}")));
        known.extend(place.epoch.map(|x| format!("epoch {x}")));
        if !known.is_empty() {
            write!(f, " ({})", known.join(", "))?;
        }
        if let Some(span) = &place.span {
            let number = span.line.to_string();
            let pad = " ".repeat(number.len());
            write!(f, "\n{pad}--> {span}")?;
            if !span.text.is_empty() {
                let lead: String = span
                    .text
                    .chars()
                    .take(span.column.saturating_sub(1))
                    .map(|c| if c == '\t' { '\t' } else { ' ' })
                    .collect();
                write!(f, "\n{pad} |\n{number} | {}\n{pad} | {lead}{}", span.text, "^".repeat(span.length.max(1)))?;
            }
        }
        for line in details {
            write!(f, "\n  {line}")?;
        }
        if let Some(help) = help {
            write!(f, "\n  help: {help}")?;
        }
        for other in more {
            write!(f, "\n{other}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.inner.source.as_deref().map(|e| e as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_shows_code_place_line_and_advice() {
        let span = Span { file: "a.sql".into(), line: 3, column: 8, length: 4, text: "SELECT nope FROM t".into() };
        let error = Error::user("UNKNOWN_COLUMN", "no column nope").at(&span).flow("f").help("did you mean name?");
        assert_eq!(
            error.to_string(),
            "[UNKNOWN_COLUMN] no column nope (flow f)\n --> a.sql:3:8\n  |\n3 | SELECT nope FROM t\n  |        ^^^^\n  help: did you mean name?"
        );
        assert_eq!(error.fault().exit_code(), 2);
    }
}
