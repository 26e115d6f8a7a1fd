//! `ostler server init`: a workspace to begin with, for scripts.

use std::process::ExitCode;

use super::Missing;
use crate::args::JsonFlag;
use crate::args::server::DatabaseArgs;
use crate::context::Context;
use crate::error::{Code, Failure};
use crate::output;

pub(super) async fn perform(
    context: &Context,
    database: &DatabaseArgs,
    workspace: &str,
    email: &str,
    json: JsonFlag,
) -> Result<ExitCode, Failure> {
    let admin = super::admin(context, database, Missing::Make).await?;
    let made = admin.init(workspace, email).await;
    admin.close().await;
    let made = made.map_err(super::store_failure)?;
    if json.json {
        output::json_line(&made)?;
    } else {
        output::line(&format!(
            "workspace     {}\napi token     {}\ndaemon token  {}\n\nThe tokens are shown only now.",
            made.workspace, made.api_token, made.daemon_token
        ))?;
    }
    Ok(Code::Success.into())
}
