//! Statements that write many rows of several tables at once.
//!
//! Owns: their text on either database, how many rows go in one statement, and the guard of rows that may have
//! changed since they were read ([`Writes::update_guarded`]).

use super::{Column, Kind, Value};

/// Parameters of one SQLite statement; what does not fit goes in the next statement.
const PARAMETERS_MAX: usize = 16_000;

/// Rows to be written, table by table. No row is written twice.
#[derive(Default)]
pub(crate) struct Writes<'a>(Vec<Write<'a>>);

struct Write<'a> {
    table: &'a str,
    columns: Vec<(&'a str, Kind)>,
    rows: Vec<Vec<Value>>,
    what: What<'a>,
}

enum What<'a> {
    /// With what follows the rows.
    Insert(&'a str),
    /// With what is set; each row is found by its first column.
    Update(String),
    /// With what is set and what must hold of each row, or nothing at all is written.
    Guarded(String, String),
}

impl<'a> Writes<'a> {
    fn push(
        &mut self,
        table: &'a str,
        columns: &[(&'a str, Kind)],
        rows: Vec<Vec<Value>>,
        what: What<'a>,
    ) {
        if !rows.is_empty() {
            self.0.push(Write { table, columns: columns.to_vec(), rows, what });
        }
    }

    /// Inserts rows; `tail` follows them.
    pub(crate) fn insert(
        &mut self,
        table: &'a str,
        columns: &[(&'a str, Kind)],
        rows: Vec<Vec<Value>>,
        tail: &'a str,
    ) {
        self.push(table, columns, rows, What::Insert(tail));
    }

    /// Does `sets`, in which `v.column2` is a row's second value, to many rows, each found by the first.
    pub(crate) fn update_with(
        &mut self,
        table: &'a str,
        columns: &[(&'a str, Kind)],
        sets: &str,
        rows: Vec<Vec<Value>>,
    ) {
        self.push(table, columns, rows, What::Update(sets.to_owned()));
    }

    /// The same for rows that must be as they were read: when one is not there or `condition` does not hold of it,
    /// nothing at all is written.
    pub(crate) fn update_guarded(
        &mut self,
        table: &'a str,
        columns: &[(&'a str, Kind)],
        sets: String,
        condition: String,
        rows: Vec<Vec<Value>>,
    ) {
        self.push(table, columns, rows, What::Guarded(sets, condition));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The statement, or statements, and what they take.
    pub(super) fn text(self, is_postgres: bool, args: &mut Vec<Value>) -> String {
        if is_postgres { postgres_text(self, args) } else { sqlite_text(self, args) }
    }
}

/// Fails, with an integer overflow, when the statement before it changed another number of rows.
fn sqlite_guard(rows: usize) -> String {
    format!("SELECT abs(-9223372036854775807 - (changes() <> {rows}))")
}

/// The same for parts of one statement, with a division by zero.
fn postgres_guard(parts: &[(usize, String)]) -> String {
    let all: Vec<_> = parts
        .iter()
        .map(|(part, rows)| format!("(SELECT count(*) FROM w{part}) = {rows}"))
        .collect();
    format!("SELECT 1 / (CASE WHEN {} THEN 1 ELSE 0 END)", all.join(" AND "))
}

impl Write<'_> {
    /// The statement, with rows from `source`: a table expression with columns `column1`, …
    fn text(&self, source: &str) -> String {
        let table = self.table;
        let key = self.columns.first().map_or("id", |(name, _)| name);
        match &self.what {
            What::Insert(tail) => {
                let names: Vec<_> = self.columns.iter().map(|(name, _)| *name).collect();
                let names = names.join(", ");
                // The WHERE keeps `ON CONFLICT` from being read as a join's condition.
                format!("INSERT INTO {table} ({names}) SELECT * FROM {source} WHERE true {tail}")
            }
            What::Update(sets) => {
                format!("UPDATE {table} SET {sets} FROM {source} WHERE {table}.{key} = v.column1")
            }
            What::Guarded(sets, condition) => format!(
                "UPDATE {table} SET {sets} FROM {source} WHERE {table}.{key} = v.column1 AND {condition}"
            ),
        }
    }
}

fn postgres_text(writes: Writes<'_>, args: &mut Vec<Value>) -> String {
    let mut texts = Vec::new();
    let mut guards = Vec::new();
    for mut write in writes.0 {
        let names: Vec<_> = (1..=write.columns.len()).map(|at| format!("column{at}")).collect();
        let rows = std::mem::take(&mut write.rows);
        let first = args.len() + 1;
        let (arrays, values) = transpose(&write.columns, rows, args.len());
        args.extend(values);
        let mut text = write.text(&format!("unnest({arrays}) AS v({})", names.join(", ")));
        if matches!(write.what, What::Guarded(..)) {
            text.push_str(" RETURNING 1");
            guards.push((texts.len(), format!("cardinality(${first})")));
        }
        texts.push(text);
    }
    let last =
        if guards.is_empty() { texts.pop().unwrap_or_default() } else { postgres_guard(&guards) };
    if texts.is_empty() {
        return last;
    }
    let with: Vec<_> =
        texts.iter().enumerate().map(|(at, text)| format!("w{at} AS ({text})")).collect();
    format!("WITH {} {last}", with.join(", "))
}

fn sqlite_text(writes: Writes<'_>, args: &mut Vec<Value>) -> String {
    let mut texts = Vec::new();
    for mut write in writes.0 {
        let chunk = (PARAMETERS_MAX / write.columns.len().max(1)).max(1);
        let mut rows = std::mem::take(&mut write.rows).into_iter().peekable();
        while rows.peek().is_some() {
            let some: Vec<_> = rows.by_ref().take(chunk).collect();
            let values = placeholders(some.len(), write.columns.len(), args.len());
            texts.push(write.text(&format!("(VALUES {values}) AS v")));
            if matches!(write.what, What::Guarded(..)) {
                texts.push(sqlite_guard(some.len()));
            }
            args.extend(some.into_iter().flatten());
        }
    }
    texts.join("; ")
}

/// `($1, $2), ($3, $4)`, the first number after `before`.
fn placeholders(rows: usize, columns: usize, before: usize) -> String {
    let mut text = String::new();
    for row in 0..rows {
        text.push_str(if row == 0 { "(" } else { ", (" });
        for column in 1..=columns {
            if column > 1 {
                text.push_str(", ");
            }
            text.push('$');
            text.push_str(&(before + row * columns + column).to_string());
        }
        text.push(')');
    }
    text
}

/// One array a column, and `$1::bigint[], $2::text[]`.
fn transpose(
    columns: &[(&str, Kind)],
    rows: Vec<Vec<Value>>,
    before: usize,
) -> (String, Vec<Value>) {
    let mut arrays: Vec<Column> = columns
        .iter()
        .map(|(_, kind)| match kind {
            Kind::Int => Column::Ints(Vec::with_capacity(rows.len())),
            Kind::Text => Column::Texts(Vec::with_capacity(rows.len())),
        })
        .collect();
    for row in rows {
        for (array, value) in arrays.iter_mut().zip(row) {
            match (array, value) {
                (Column::Ints(values), Value::Int(value)) => values.push(value),
                (Column::Texts(values), Value::Text(value)) => values.push(value),
                (Column::Ints(values), _) => values.push(None),
                (Column::Texts(values), _) => values.push(None),
            }
        }
    }
    let text: Vec<_> = columns
        .iter()
        .enumerate()
        .map(|(at, (_, kind))| match kind {
            Kind::Int => format!("${}::bigint[]", before + at + 1),
            Kind::Text => format!("${}::text[]", before + at + 1),
        })
        .collect();
    (text.join(", "), arrays.into_iter().map(Value::Column).collect())
}
