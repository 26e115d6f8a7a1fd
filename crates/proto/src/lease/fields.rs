//! Reads an object field by field and collects what is wrong, so that a caller learns all of it at once.

use serde_json::{Map, Value};

/// What is wrong: fields in the order they were looked at, with sentences.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Faults(Vec<(String, String)>);

impl Faults {
    /// Nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds what is wrong with a field.
    pub fn add(&mut self, field: impl Into<String>, fault: impl Into<String>) {
        self.0.push((field.into(), fault.into()));
    }

    /// `{"field": ["…"]}`.
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        for (field, fault) in &self.0 {
            let entry = object.entry(field.clone()).or_insert_with(|| Value::Array(Vec::new()));
            if let Value::Array(list) = entry {
                list.push(Value::String(fault.clone()));
            }
        }
        Value::Object(object)
    }

    /// All in one line.
    pub fn to_sentence(&self) -> String {
        let parts: Vec<_> =
            self.0.iter().map(|(field, fault)| format!("{field} {fault}")).collect();
        parts.join("; ")
    }
}

/// An object that is being read. Fields it does not know are left alone: the protocol grows by adding.
#[derive(Debug)]
pub struct Fields<'a> {
    object: Option<&'a Map<String, Value>>,
    place: Place,
    faults: Faults,
}

/// Where in the body the object stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// It is the body.
    Body,
    /// Below this field.
    Field(&'static str),
    /// An entry of this list.
    Entry(&'static str, usize),
}

impl Place {
    /// The whole name of one of its fields.
    fn name(self, field: &str) -> String {
        match self {
            Self::Body => field.to_owned(),
            Self::Field(place) => format!("{place}.{field}"),
            Self::Entry(list, at) => format!("{list}.{at}.{field}"),
        }
    }
}

impl<'a> Fields<'a> {
    /// Reads `value`, which must be an object.
    pub fn of(value: &'a Value) -> Self {
        Self::at(value, Place::Body)
    }

    /// Reads what stands in the body's field `name` (`result.usage`).
    pub fn within(value: &'a Value, name: &'static str) -> Self {
        Self::at(value, Place::Field(name))
    }

    /// Reads an entry of the body's list `name`.
    pub fn entry(value: &'a Value, name: &'static str, at: usize) -> Self {
        Self::at(value, Place::Entry(name, at))
    }

    fn at(value: &'a Value, place: Place) -> Self {
        let mut this = Self { object: value.as_object(), place, faults: Faults::default() };
        if this.object.is_none() {
            let name = match place {
                Place::Body => "body".to_owned(),
                Place::Field(name) => name.to_owned(),
                Place::Entry(list, at) => format!("{list}.{at}"),
            };
            this.faults.add(name, "must be an object");
        }
        this
    }

    /// The value if nothing was wrong.
    pub fn done<T>(self, value: T) -> Result<T, Faults> {
        if self.faults.is_empty() { Ok(value) } else { Err(self.faults) }
    }

    /// Says that a field is wrong.
    pub fn fault(&mut self, field: &str, fault: impl Into<String>) {
        self.faults.add(self.place.name(field), fault);
    }

    /// Takes over what was wrong with a part.
    pub fn take<T: Default>(&mut self, part: Result<T, Faults>) -> T {
        part.unwrap_or_else(|faults| {
            self.faults.0.extend(faults.0);
            T::default()
        })
    }

    /// A field that is there and not null.
    pub fn value(&self, field: &str) -> Option<&'a Value> {
        self.object?.get(field).filter(|value| !value.is_null())
    }

    /// The field is there, perhaps as null.
    pub fn has(&self, field: &str) -> bool {
        self.object.is_some_and(|object| object.contains_key(field))
    }

    fn missing(&mut self, field: &str) {
        // An object that is none has said so already.
        if self.object.is_some() {
            self.fault(field, "is required");
        }
    }

    /// A text of at most `chars_max` characters without NUL; `None` when it is missing or null.
    pub fn opt_text(&mut self, field: &str, chars_max: usize) -> Option<String> {
        match self.value(field)? {
            // As many bytes are no more characters, and are counted faster.
            Value::String(text) if text.len() > chars_max && text.chars().count() > chars_max => {
                self.fault(field, format!("must have at most {chars_max} characters"));
                None
            }
            // PostgreSQL keeps no NUL; what is shown instead is its picture.
            Value::String(text) if text.contains('\0') => Some(text.replace('\0', "\u{2400}")),
            Value::String(text) => Some(text.clone()),
            _ => {
                self.fault(field, "must be a string");
                None
            }
        }
    }

    /// A text of 1 to `chars_max` characters that must be there.
    pub fn text(&mut self, field: &str, chars_max: usize) -> String {
        if self.value(field).is_none() {
            self.missing(field);
            return String::new();
        }
        let text = self.opt_text(field, chars_max).unwrap_or_default();
        if text.is_empty() && self.value(field).is_some_and(|value| value == "") {
            self.fault(field, "must not be empty");
        }
        text
    }

    /// A word of 1 to `chars_max` printable characters that must be there.
    pub fn word(&mut self, field: &str, chars_max: usize) -> String {
        let text = self.text(field, chars_max);
        if text.chars().any(char::is_control) || text.contains('\u{2400}') {
            self.fault(field, "must have no control characters");
        }
        text
    }

    /// Such a word, or nothing.
    pub fn opt_word(&mut self, field: &str, chars_max: usize) -> Option<String> {
        self.value(field)?;
        Some(self.word(field, chars_max))
    }

    /// An integer within `range`; `None` when it is missing or null.
    pub fn opt_int(&mut self, field: &str, range: std::ops::RangeInclusive<i64>) -> Option<i64> {
        let value = self.value(field)?;
        match value.as_i64().filter(|number| range.contains(number)) {
            Some(number) => Some(number),
            None => {
                let (low, high) = (range.start(), range.end());
                self.fault(field, format!("must be an integer from {low} to {high}"));
                None
            }
        }
    }

    /// An integer within `range` that must be there.
    pub fn int(&mut self, field: &str, range: std::ops::RangeInclusive<i64>) -> i64 {
        if self.value(field).is_none() {
            self.missing(field);
            return *range.start();
        }
        let low = *range.start();
        self.opt_int(field, range).unwrap_or(low)
    }

    /// True or false; `None` when it is missing or null.
    pub fn opt_bool(&mut self, field: &str) -> Option<bool> {
        let value = self.value(field)?;
        if value.as_bool().is_none() {
            self.fault(field, "must be true or false");
        }
        value.as_bool()
    }

    /// A list of at most `max` things; `None` when it is missing or null.
    pub fn opt_list(&mut self, field: &str, max: usize) -> Option<&'a [Value]> {
        match self.value(field)? {
            Value::Array(list) if list.len() > max => {
                self.fault(field, format!("must have at most {max} entries"));
                None
            }
            Value::Array(list) => Some(list),
            _ => {
                self.fault(field, "must be a list");
                None
            }
        }
    }

    /// A list of 1 to `max` things that must be there.
    pub fn list(&mut self, field: &str, max: usize) -> &'a [Value] {
        if self.value(field).is_none() {
            self.missing(field);
            return &[];
        }
        let list = self.opt_list(field, max);
        if list.is_some_and(<[Value]>::is_empty) {
            self.fault(field, "must not be empty");
        }
        list.unwrap_or_default()
    }

    /// A list of texts, or nothing.
    pub fn opt_texts(&mut self, field: &str, max: usize, chars_max: usize) -> Option<Vec<String>> {
        let list = self.opt_list(field, max)?;
        let texts: Option<Vec<String>> = list
            .iter()
            .map(|value| {
                let text = value.as_str().filter(|text| text.chars().count() <= chars_max)?;
                Some(text.replace('\0', "\u{2400}"))
            })
            .collect();
        if texts.is_none() {
            self.fault(
                field,
                format!("must be a list of strings of at most {chars_max} characters"),
            );
        }
        texts
    }

    /// An object, or nothing.
    pub fn opt_object(&mut self, field: &str) -> Option<&'a Map<String, Value>> {
        match self.value(field)? {
            Value::Object(object) => Some(object),
            _ => {
                self.fault(field, "must be an object");
                None
            }
        }
    }
}
