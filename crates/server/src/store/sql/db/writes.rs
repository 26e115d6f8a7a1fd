//! Statements that write many rows of several tables at once.
//!
//! Owns: their text on either database, how many rows go in one statement, and the guard of rows that may have
//! changed since they were read ([`Writes::update_guarded`]).

use super::{Column, Kind, Value};

/// Rows of one SQLite statement, a power of two; what does not fit goes in the next statement.
const ROWS_MAX: usize = 64;

/// So many rows are few: see [`postgres_source`].
const FEW_ROWS: usize = 256;

/// Rows to be written, table by table. No row is written twice.
#[derive(Default)]
pub(crate) struct Writes<'a> {
    all: Vec<Write<'a>>,
    waits_for_nobody: bool,
}

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
            self.all.push(Write { table, columns: columns.to_vec(), rows, what });
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

    /// On PostgreSQL guarded rows that another transaction has locked are not waited for: nothing is written then.
    /// (On SQLite there is one writer.)
    pub(crate) fn wait_for_nobody(&mut self) {
        self.waits_for_nobody = true;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn statement(self, is_postgres: bool) -> Statement {
        let most = self.all.iter().map(|write| write.rows.len()).max().unwrap_or(0);
        let mut args = Vec::new();
        let text = if is_postgres {
            postgres_text(self, &mut args)
        } else {
            sqlite_text(self, most.min(ROWS_MAX).next_power_of_two(), &mut args)
        };
        Statement { text, args, is_kept: is_postgres || most <= ROWS_MAX }
    }
}

/// What is sent to a database.
pub(super) struct Statement {
    pub(super) text: String,
    pub(super) args: Vec<Value>,
    /// Texts like it come again, so it is worth keeping prepared.
    pub(super) is_kept: bool,
}

/// Fails, with an integer overflow, when the statement before it changed another number of rows.
const SQLITE_GUARD: &str = "SELECT abs(-9223372036854775807 - (changes() <> ?))";

/// The same for parts of one statement, with a division by zero.
fn postgres_guard(parts: &[(usize, String)]) -> String {
    let all: Vec<_> = parts
        .iter()
        .map(|(part, rows)| format!("(SELECT count(*) FROM w{part}) = {rows}"))
        .collect();
    format!("SELECT 1 / (CASE WHEN {} THEN 1 ELSE 0 END)", all.join(" AND "))
}

impl Write<'_> {
    /// The column a row is found by.
    fn key(&self) -> &str {
        self.columns.first().map_or("id", |(name, _)| name)
    }

    /// The statement, with rows from `source`: a table expression with columns `column1`, …
    fn text(&self, source: &str) -> String {
        let table = self.table;
        let key = self.key();
        match &self.what {
            What::Insert(tail) => {
                let names: Vec<_> = self.columns.iter().map(|(name, _)| *name).collect();
                let names = names.join(", ");
                // The WHERE also keeps `ON CONFLICT` from being read as a join's condition.
                format!(
                    "INSERT INTO {table} ({names}) SELECT * FROM {source} WHERE column1 IS NOT NULL {tail}"
                )
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

/// The rows of arrays. PostgreSQL unnests each array by itself before it joins them, which costs more than taking few
/// rows' elements by their number; but those are counted from the front, each time.
fn postgres_source(arrays: &[String], is_few: bool) -> String {
    let names: Vec<_> = (1..=arrays.len()).map(|at| format!("column{at}")).collect();
    let (Some(first), true) = (arrays.first(), is_few) else {
        return format!("unnest({}) AS v({})", arrays.join(", "), names.join(", "));
    };
    let others = arrays.iter().zip(&names).skip(1);
    let others: String =
        others.map(|(array, name)| format!(", ({array})[k.at::int] AS {name}")).collect();
    format!(
        "(SELECT k.column1{others} FROM unnest({first}) WITH ORDINALITY AS k(column1, at)) AS v"
    )
}

fn postgres_text(writes: Writes<'_>, args: &mut Vec<Value>) -> String {
    let mut texts = Vec::new();
    let mut guards = Vec::new();
    for mut write in writes.all {
        let rows = std::mem::take(&mut write.rows);
        let first = args.len() + 1;
        let is_few = rows.len() <= FEW_ROWS;
        let (arrays, values) = transpose(&write.columns, rows, args.len());
        args.extend(values);
        let mut source = postgres_source(&arrays, is_few);
        let is_guarded = matches!(write.what, What::Guarded(..));
        if is_guarded && writes.waits_for_nobody {
            let (table, key) = (write.table, write.key());
            source.push_str(&format!(
                " CROSS JOIN LATERAL (SELECT 1 FROM {table} AS x WHERE x.{key} = v.column1 \
                 FOR NO KEY UPDATE SKIP LOCKED) AS free"
            ));
        }
        let mut text = write.text(&source);
        if is_guarded {
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

/// Statements with room for as many rows, so that there are few different texts; what is left of the room is rows
/// of nothing, which are found nowhere and inserted nowhere.
fn sqlite_text(writes: Writes<'_>, room: usize, args: &mut Vec<Value>) -> String {
    let mut texts = Vec::new();
    for mut write in writes.all {
        let columns = write.columns.len();
        let mut rows = std::mem::take(&mut write.rows).into_iter().peekable();
        while rows.peek().is_some() {
            let before = args.len();
            args.extend(rows.by_ref().take(room).flatten());
            let some = (args.len() - before) / columns.max(1);
            args.resize(before + room * columns, Value::Int(None));
            texts.push(write.text(&format!("(VALUES {}) AS v", placeholders(room, columns))));
            if matches!(write.what, What::Guarded(..)) {
                texts.push(SQLITE_GUARD.to_owned());
                args.push(i64::try_from(some).unwrap_or(i64::MAX).into());
            }
        }
    }
    texts.join("; ")
}

/// `(?, ?), (?, ?)`: without names, which SQLite compares with all those before.
fn placeholders(rows: usize, columns: usize) -> String {
    let row = format!("({})", vec!["?"; columns].join(", "));
    vec![row.as_str(); rows].join(", ")
}

/// One array a column, as `$1::bigint[]` or `$2::text[]`.
fn transpose(
    columns: &[(&str, Kind)],
    rows: Vec<Vec<Value>>,
    before: usize,
) -> (Vec<String>, Vec<Value>) {
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
    let text = columns
        .iter()
        .enumerate()
        .map(|(at, (_, kind))| match kind {
            Kind::Int => format!("${}::bigint[]", before + at + 1),
            Kind::Text => format!("${}::text[]", before + at + 1),
        })
        .collect();
    (text, arrays.into_iter().map(Value::Column).collect())
}
