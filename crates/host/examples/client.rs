//! The typed client: submits a task to a running daemon, follows it, and exits by its end.
//!
//! ```text
//! cargo run -p ostler-host --example client -- ~/.haskell-agent/runtime/daemon.sock my-task "Say hello."
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program")]

use std::process::ExitCode;

use ostler_host::client::{Client, ClientError, ConnectOptions, Update};
use ostler_proto::framed::{Submit, Task, TaskStatus};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (Some(socket), Some(task_id), Some(prompt)) = (args.next(), args.next(), args.next())
    else {
        eprintln!("usage: client SOCKET TASK_ID PROMPT");
        return ExitCode::from(2);
    };
    match follow(&socket, task_id, prompt).await {
        Ok(task) if task.status == TaskStatus::Completed => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(3)
        }
    }
}

/// Submits the task and waits for its end.
async fn follow(socket: &str, task_id: String, prompt: String) -> Result<Task, ClientError> {
    // A client that keeps `updates.last_applied()` with its state gives it as `resume_after` when it
    // comes back, and gets what it missed instead of a snapshot.
    let options = ConnectOptions { client_id: "example".to_owned(), resume_after: None };
    let (client, mut updates) = Client::connect(socket.into(), options).await?;
    let submit = Submit {
        task_id: task_id.clone(),
        prompt,
        cwd: std::env::current_dir().map_or("/".to_owned(), |dir| dir.display().to_string()),
        ..Submit::default()
    };
    let submitted = client.submit(submit).await?.task;
    println!("{} is submitted", submitted.task_id);
    while let Some(update) = updates.next().await? {
        // Applied here, so acknowledged here.
        updates.acknowledge().await?;
        let Update::Task { task, .. } = update else { continue };
        if task.task_id != task_id {
            continue;
        }
        println!("{:?}", task.status);
        if !matches!(task.status, TaskStatus::Queued | TaskStatus::Running) {
            task.log_tail.iter().for_each(|line| println!("{line}"));
            return Ok(*task);
        }
    }
    Err(ClientError::Closed("the daemon has ended".to_owned()))
}
