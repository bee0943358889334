//! Names of options: which have an effect, which have none here, and which would change what is read and cannot.

/// What an option does.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// What its name says.
    Some,
    /// It says what holds anyway.
    Default,
    /// Nothing, and why.
    None(&'static str),
    /// It would change the rows, and that cannot be done; with what to do instead.
    Refused(&'static str),
    /// Nobody knows it.
    Unknown,
}

/// Options that are understood.
pub(super) const KNOWN: [&str; 54] = [
    "format",
    "mode",
    "columnNameOfCorruptRecord",
    "rescuedDataColumn",
    "schemaEvolutionMode",
    "readerCaseSensitive",
    "inferSchema",
    "inferColumnTypes",
    "primitivesAsString",
    "schemaHints",
    "recursiveFileLookup",
    "partitionColumns",
    "pathGlobFilter",
    "fileNamePattern",
    "modifiedAfter",
    "modifiedBefore",
    "includeExistingFiles",
    "allowOverwrites",
    "ignoreMissingFiles",
    "ignoreCorruptFiles",
    "cleanSource",
    "cleanSource.retentionDuration",
    "cleanSource.moveDestination",
    "sourceArchiveDir",
    "maxFilesPerTrigger",
    "maxBytesPerTrigger",
    "encoding",
    "charset",
    "lineSep",
    "multiLine",
    "wholetext",
    "allowSingleQuotes",
    "allowNonNumericNumbers",
    "allowComments",
    "allowUnquotedFieldNames",
    "allowNumericLeadingZeros",
    "allowBackslashEscapingAnyCharacter",
    "allowUnquotedControlChars",
    "header",
    "enforceSchema",
    "sep",
    "delimiter",
    "quote",
    "escape",
    "comment",
    "nullValue",
    "emptyValue",
    "skipRows",
    "ignoreLeadingWhiteSpace",
    "ignoreTrailingWhiteSpace",
    "dateFormat",
    "timestampFormat",
    "timestampNTZFormat",
    "timeZone",
];

const MANAGED: &str = "has no effect: schemas and progress are kept in the pipeline's storage";
const LOCAL: &str = "has no effect: folders are listed, there are no notifications of a cloud";
const TUNING: &str = "has no effect: it is for tuning another reader";
const NEVER: &str = "has no effect: a file that was read is never forgotten";

/// Options without an effect on the rows, and why.
const WITHOUT: [(&str, &str); 41] = [
    ("schemaLocation", MANAGED),
    ("validateOptions", MANAGED),
    ("maxFileAge", NEVER),
    ("useNotifications", LOCAL),
    ("useManagedFileEvents", LOCAL),
    ("useIncrementalListing", LOCAL),
    ("backfillInterval", LOCAL),
    ("fetchParallelism", LOCAL),
    ("pathRewrites", LOCAL),
    ("resourceTag", LOCAL),
    ("region", LOCAL),
    ("queueUrl", LOCAL),
    ("roleArn", LOCAL),
    ("roleExternalId", LOCAL),
    ("roleSessionName", LOCAL),
    ("stsEndpoint", LOCAL),
    ("awsAccessKey", LOCAL),
    ("awsSecretKey", LOCAL),
    ("instanceProfile", LOCAL),
    ("databricks.serviceCredential", LOCAL),
    ("subscriptionId", LOCAL),
    ("subscription", LOCAL),
    ("tenantId", LOCAL),
    ("clientId", LOCAL),
    ("clientSecret", LOCAL),
    ("client", LOCAL),
    ("clientEmail", LOCAL),
    ("privateKey", LOCAL),
    ("privateKeyId", LOCAL),
    ("connectionString", LOCAL),
    ("queueName", LOCAL),
    ("resourceGroup", LOCAL),
    ("projectId", LOCAL),
    ("useStrictGlobber", "has no effect: patterns are always strict"),
    ("mergeSchema", "has no effect: columns are matched by name in every file"),
    ("latestFirst", "has no effect: the order of files makes no difference to the tables"),
    ("samplingRatio", "has no effect: a schema is inferred from all records of the sample"),
    ("maxColumns", TUNING),
    ("maxCharsPerColumn", TUNING),
    ("inputBufferSize", TUNING),
    ("columnPruning", TUNING),
];

/// Options that exist elsewhere, with the values that hold here, and what to do instead.
const FIXED: [(&str, &[&str], &str); 21] = [
    (
        "compression",
        &["", "none", "uncompressed", "gzip", "zstd", "bzip2"],
        "the name of a file tells how it is packed",
    ),
    ("locale", &["", "en-us", "en_us", "en", "root"], "names of months are English"),
    ("nanValue", &["nan"], "NaN it is"),
    ("positiveInf", &["inf"], "Inf it is"),
    ("negativeInf", &["-inf"], "-Inf it is"),
    ("unescapedQuoteHandling", &["stop_at_delimiter"], "STOP_AT_DELIMITER it is"),
    ("charToEscapeQuoteEscaping", &["", "\\"], "the escape escapes itself"),
    ("preferDate", &["true"], "texts that are dates are inferred as dates"),
    ("prefersDate", &["true"], "texts that are dates are inferred as dates"),
    ("prefersDecimal", &["false"], "give the column its type in schemaHints"),
    ("dropFieldIfAllNull", &["false"], "leave the column out in the query"),
    ("enableDateTimeParsingFallback", &["false"], "give dateFormat and timestampFormat"),
    ("datetimeRebaseMode", &["exception", "corrected"], "dates are read in the Gregorian calendar"),
    ("int96RebaseMode", &["exception", "corrected"], "timestamps are read in the Gregorian calendar"),
    ("rowTag", &[], "XML files are not supported: turn them into JSON lines"),
    ("avroSchema", &[], "declare the columns with schema => '…'"),
    ("avroSchemaUrl", &[], "declare the columns with schema => '…'"),
    ("singleVariantColumn", &[], "read lines with format => 'text' and take them apart with from_json"),
    ("fileNameOnly", &["false"], "files are told apart by their whole paths"),
    ("maxCachedFiles", &["10000"], "nothing is cached"),
    ("discardCachedInputRatio", &["0.2"], "nothing is cached"),
];

/// What an option does with a value, by its name in lower case without `cloudfiles.`.
pub(super) fn effect_of(name: &str, value: &str) -> Effect {
    if KNOWN.iter().any(|x| x.eq_ignore_ascii_case(name)) {
        return Effect::Some;
    }
    if let Some((_, values, instead)) = FIXED.iter().find(|x| x.0.eq_ignore_ascii_case(name)) {
        let holds = values.contains(&value.to_lowercase().as_str());
        return if holds { Effect::Default } else { Effect::Refused(instead) };
    }
    if name.starts_with("resourcetag.") {
        return Effect::None(LOCAL);
    }
    match WITHOUT.iter().find(|x| x.0.eq_ignore_ascii_case(name)) {
        Some((_, why)) => Effect::None(why),
        None => Effect::Unknown,
    }
}

/// What is said of an option that nobody knows.
pub(super) fn unknown(key: &str, name: &str) -> String {
    let near = KNOWN
        .iter()
        .map(|x| (strsim::damerau_levenshtein(&x.to_lowercase(), name), x))
        .min()
        .filter(|(distance, x)| *distance <= 1 + x.len() / 4);
    match near {
        Some((_, near)) => format!("read_files has no option {key}; did you mean {near}?"),
        None => format!("read_files has no option {key}"),
    }
}
