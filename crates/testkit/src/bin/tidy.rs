//! `tidy`: prints which requirements no test names. `tidy requirements` rewrites the table of requirements and
//! tests first; `tidy bounds` prints every `const …_MAX` instead.

use std::fs;
use std::io::{self, Write};
use std::process::ExitCode;

use ostler_testkit::tidy;

fn main() -> io::Result<ExitCode> {
    let mut out = io::stdout().lock();
    let sources = tidy::sources();
    let path = tidy::root().join(tidy::REQUIREMENTS);
    let table = fs::read_to_string(&path)?;
    let named = tidy::named(&sources);
    match std::env::args().nth(1).as_deref() {
        None => {}
        Some("requirements") => {
            let rendered = tidy::render_requirements(&table, &named);
            if rendered != table {
                fs::write(&path, rendered)?;
            }
        }
        Some("bounds") => {
            for bound in tidy::bounds(&sources) {
                writeln!(out, "{:<40} {}  {}", bound.name, bound.at, bound.doc)?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        Some(other) => {
            writeln!(io::stderr(), "tidy [requirements|bounds], not {other}")?;
            return Ok(ExitCode::from(64));
        }
    }
    let required = tidy::required(&table);
    let unnamed = required.iter().filter(|number| !named.contains_key(*number));
    let unnamed: Vec<String> = unnamed.cloned().collect();
    writeln!(
        out,
        "requirements: {} of {} are named by a test",
        required.len() - unnamed.len(),
        required.len()
    )?;
    if !unnamed.is_empty() {
        writeln!(out, "named by no test: {}", unnamed.join(" "))?;
    }
    Ok(ExitCode::SUCCESS)
}
