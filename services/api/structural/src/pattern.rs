//! `pattern`, as Go reads it (`api_cel::go_regex`).

use std::fmt;
use std::sync::{Arc, OnceLock};

use api_cel::go_regex::compile;
use regex::Regex;

/// Compiled when first needed: most schemas are never asked about most of their fields.
#[derive(Clone)]
pub(crate) struct Pattern {
    text: String,
    compiled: Arc<OnceLock<Result<Regex, String>>>,
}

impl Pattern {
    pub fn new(text: String) -> Pattern {
        Pattern { text, compiled: Arc::default() }
    }
    pub fn as_str(&self) -> &str {
        &self.text
    }
    pub fn compiled(&self) -> Result<&Regex, &str> {
        self.compiled.get_or_init(|| compile(&self.text)).as_ref().map_err(String::as_str)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.text == other.text
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pattern({:?})", self.text)
    }
}
