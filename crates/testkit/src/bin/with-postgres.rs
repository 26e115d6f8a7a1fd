//! `with-postgres VARIABLE PROGRAM [ARGUMENT…]`: runs a program with the URL of an empty database in a variable of its
//! environment. The PostgreSQL is one of its own, as tests have it, and is gone when the program has ended.

use std::env;
use std::io::{self, Write as _};
use std::process::{Command, ExitCode};

use ostler_testkit::postgres::{Options, ScratchPostgres};

fn main() -> io::Result<ExitCode> {
    let mut arguments = env::args_os().skip(1);
    let (Some(variable), Some(program)) = (arguments.next(), arguments.next()) else {
        writeln!(io::stderr(), "with-postgres VARIABLE PROGRAM [ARGUMENT…]")?;
        return Ok(ExitCode::from(64));
    };
    let options = Options { fsync: false, ..Options::default() };
    let Some(postgres) = ScratchPostgres::start("with-postgres", options) else {
        return Ok(ExitCode::FAILURE);
    };
    let url = postgres.create_database("scratch");
    let status = Command::new(program).args(arguments).env(variable, url).status()?;
    // One that a signal ended has failed.
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Ok(ExitCode::from(code))
}
