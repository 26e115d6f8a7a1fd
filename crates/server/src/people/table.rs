//! The table of the people's endpoints: what the router is built from, and the document that describes them.

use axum::response::Response;
use futures_util::future::BoxFuture;

use super::call::Call;
use super::{
    agents, attachments, comments, issues, members, projects, runtimes, skills, tasks, time,
    tokens, usage, workspace,
};
use crate::auth::Ability;
use crate::http::Fault;

/// What surrounds what is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Nothing: the schema is the answer.
    Bare,
    /// `{"data": …}`
    Data,
    /// `{"data": …}`, or `{"data": null}` when there is none.
    OrNull,
    /// `{"data": [], "links": {"next": …}}`
    List,
    /// There is no body.
    Nothing,
    /// The bytes of a file.
    File,
}

/// How a success is answered.
#[derive(Debug, Clone, Copy)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// What surrounds it.
    pub shape: Shape,
    /// The name of its schema; empty when there is none.
    pub schema: &'static str,
}

type Run = fn(Call) -> BoxFuture<'static, Result<Response, Fault>>;

/// One row of the table.
pub struct Endpoint {
    /// `GET`, `POST`, …
    pub method: &'static str,
    /// With parts in braces.
    pub path: &'static str,
    /// What a token must be good for.
    pub ability: Ability,
    /// The name of the body's schema; [`FILE`] for a form with a file.
    pub body: Option<&'static str>,
    /// Parameters of the query, by their names in `schemas.json`.
    pub query: &'static [&'static str],
    /// How a success is answered.
    pub answer: Answer,
    /// In one line.
    pub summary: &'static str,
    pub(super) run: Run,
}

/// The body is a form with the field `file`.
pub const FILE: &str = "File";

macro_rules! rows {
    ($($method:ident $path:literal $ability:ident $body:expr, [$($query:literal),*] =>
        $status:literal $shape:ident $schema:literal, $run:path, $summary:literal;)*) => {
        &[$(Endpoint {
            method: stringify!($method),
            path: concat!("/api/v1", $path),
            ability: Ability::$ability,
            body: $body,
            query: &[$($query),*],
            answer: Answer { status: $status, shape: Shape::$shape, schema: $schema },
            summary: $summary,
            run: |call| Box::pin($run(call)),
        }),*]
    };
}

/// All of them. `GET /api/v1/events` is a stream and stands apart.
pub const ENDPOINTS: &[Endpoint] = rows! {
    GET "/me" Read None, [] => 200 Bare "Me", workspace::me, "Whose token this is";
    GET "/projects" Read None, ["page", "per_page"] => 200 List "Named", projects::list, "Projects by name";
    POST "/projects" Write Some("NewProject"), [] => 201 Data "Named", projects::create, "Make a project";

    GET "/issues" Read None, ["assignee", "project_id", "status", "page", "per_page"] =>
        200 List "Issue", issues::list, "Issues, the newest activity first";
    POST "/issues" Write Some("NewIssue"), [] => 201 Data "Issue", issues::create,
        "Write an issue; assigning it to an agent queues a task";
    GET "/issues/{issue}" Read None, [] => 200 Data "Issue", issues::show, "One issue";
    PATCH "/issues/{issue}" Write Some("IssueChange"), [] => 200 Data "Issue", issues::update,
        "Change an issue; assigning it to an agent queues a task unless one of this agent is open here, and \
         cancels what is queued for others and was not begun";
    GET "/issues/{issue}/comments" Read None, ["page", "per_page"] =>
        200 List "Comment", comments::list, "What was said, the oldest first";
    POST "/issues/{issue}/comments" Write Some("NewComment"), [] =>
        201 Data "Comment", comments::create, "Say something";
    DELETE "/issues/{issue}/comments/{comment}" Write None, [] =>
        204 Nothing "", comments::withdraw, "Withdraw a comment of one's own or of an agent";
    POST "/issues/{issue}/comments/{comment}/attachments" Write Some(FILE), [] =>
        201 Data "Attachment", attachments::create, "Add a file to a comment of one's own";
    GET "/issues/{issue}/comments/{comment}/attachments/{attachment}" Read None, [] =>
        200 File "", attachments::download, "Download a file";
    GET "/issues/{issue}/deliveries" Read None, ["page", "per_page"] =>
        200 List "Delivery", issues::deliveries, "What runs handed back";
    POST "/issues/{issue}/time" Write Some("NewTime"), [] => 201 Data "TimeEntry", time::book, "Book time";
    POST "/issues/{issue}/timer" Write None, [] => 201 Data "Timer", time::start,
        "Start one's timer; one that runs on another issue is stopped and booked";

    GET "/time-entries" Read None, ["from", "to", "mine", "page", "per_page"] =>
        200 List "TimeEntry", time::list, "Time that was spent, the newest first";
    GET "/timer" Read None, [] => 200 OrNull "Timer", time::timer, "One's timer, if it runs";
    DELETE "/timer" Write None, [] => 200 OrNull "TimeEntry", time::stop,
        "Stop one's timer and book its time";

    GET "/agents" Read None, ["archived", "page", "per_page"] =>
        200 List "Agent", agents::list, "Agents by name";
    POST "/agents" Write Some("NewAgent"), [] => 201 Data "Agent", agents::create,
        "Make an agent; custom_env and mcp_config need the ability admin";
    GET "/agents/{agent}" Read None, [] => 200 Data "Agent", agents::show, "One agent";
    PATCH "/agents/{agent}" Write Some("AgentChange"), [] => 200 Data "Agent", agents::update,
        "Change, pause or bring back an agent; custom_env and mcp_config are merged name by name and need \
         the ability admin";
    DELETE "/agents/{agent}" Write None, [] => 204 Nothing "", agents::archive, "Archive an agent";
    PUT "/agents/{agent}/skills/{skill}" Write None, [] =>
        204 Nothing "", agents::skill_attach, "Give an agent a skill";
    DELETE "/agents/{agent}/skills/{skill}" Write None, [] =>
        204 Nothing "", agents::skill_detach, "Take a skill from an agent";

    GET "/skills" Read None, ["page", "per_page"] => 200 List "SkillBrief", skills::list, "Skills by name";
    POST "/skills" Write Some("NewSkill"), [] => 201 Data "Skill", skills::create, "Make a skill";
    GET "/skills/{skill}" Read None, [] => 200 Data "Skill", skills::show, "One skill with its files";
    PATCH "/skills/{skill}" Write Some("SkillChange"), [] => 200 Data "Skill", skills::update,
        "Change a skill; files are all of them";
    DELETE "/skills/{skill}" Write None, [] => 204 Nothing "", skills::remove, "Remove a skill";

    GET "/runtimes" Read None, ["page", "per_page"] =>
        200 List "Runtime", runtimes::list, "Machines and their agent CLIs";
    GET "/runtimes/{runtime}" Read None, [] => 200 Data "Runtime", runtimes::show, "One runtime";

    GET "/tasks" Read None, ["state", "agent_id", "issue", "page", "per_page"] =>
        200 List "Task", tasks::list, "Tasks, the newest first";
    GET "/tasks/{task}" Read None, [] => 200 Data "TaskDetail", tasks::show,
        "One task: what came of it, or why it is still queued";
    GET "/tasks/{task}/messages" Read None, ["after", "limit"] =>
        200 List "Message", tasks::messages, "Output above a number";
    POST "/tasks/{task}/cancel" Write None, [] => 200 Data "TaskDetail", tasks::cancel, "Cancel a task";
    POST "/tasks/{task}/retry" Write None, [] =>
        200 Data "TaskDetail", tasks::retry, "Run an ended task again";
    POST "/tasks/{task}/decision" Write Some("NewDecision"), [] => 200 Data "TaskDetail", tasks::decide,
        "Decide about a waiting run; the first decision stands";
    GET "/approvals" Read None, ["page", "per_page"] =>
        200 List "Approval", tasks::approvals, "Runs that wait for a person, the longest first";
    GET "/usage" Read None, ["by", "from", "to", "page", "per_page"] =>
        200 List "UsageSum", usage::list, "What completed runs used";

    GET "/workspace" Read None, [] => 200 Data "Workspace", workspace::show, "The workspace and its settings";
    PATCH "/workspace" Admin Some("WorkspaceChange"), [] => 200 Data "Workspace", workspace::update,
        "Change the workspace's settings";
    GET "/repositories" Read None, ["page", "per_page"] =>
        200 List "Repository", workspace::repositories, "What runs may check out";
    POST "/repositories" Admin Some("NewRepository"), [] => 201 Data "Repository", workspace::repository_add,
        "Let runs check a repository out";
    DELETE "/repositories/{repository}" Admin None, [] =>
        204 Nothing "", workspace::repository_remove, "Take a repository off the list";
    GET "/members" Read None, ["page", "per_page"] => 200 List "Member", members::list, "People by name";
    POST "/members" Admin Some("NewMember"), [] =>
        201 Data "Member", members::add, "Add a person by e-mail address";
    PATCH "/members/{user}" Admin Some("MemberChange"), [] =>
        200 Data "Member", members::update, "Give a member another role";
    DELETE "/members/{user}" Admin None, [] => 204 Nothing "", members::remove,
        "Remove a member and revoke its tokens";
    GET "/tokens" Admin None, ["page", "per_page"] => 200 List "Token", tokens::list,
        "Tokens, the newest first; of others for administrators only";
    POST "/tokens" Admin Some("NewToken"), [] => 201 Data "MadeToken", tokens::create,
        "Make a token, which is shown this once";
    DELETE "/tokens/{token}" Admin None, [] => 204 Nothing "", tokens::revoke, "Revoke a token";
};
