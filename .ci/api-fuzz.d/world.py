"""A small world on the server, and how fuzzed requests get into it.

What is made up at random names nothing that exists, and would be answered 404 for ever. So a name that was
generated to be right is mostly replaced by one of a thing that is there, and a request about a task is given
one in the right state, a machine's with its lease. What was generated to be wrong stays wrong.

The choice depends on the request and on what was answered before, not on time or chance.
"""

import atexit
import os
import zlib
from itertools import count

import requests
import schemathesis
from schemathesis.core.parameters import ParameterLocation
from schemathesis.generation import GenerationMode

URL = os.environ["OSTLER_FUZZ_URL"]
TOKENS = {"v1": os.environ["OSTLER_FUZZ_API_TOKEN"], "daemon": os.environ["OSTLER_FUZZ_DAEMON_TOKEN"]}
PROVIDER = "claude_code"
DAEMON = "machine-1"
VERSION = {"X-Felagi-Client-Version": "0.3.0"}
CAPABILITIES = ["", "streaming,resume,cancel,thread", "thread,await,actors,start_deadline"]
# Of so many requests one keeps what was generated.
KEPT_ONE_OF = 5
# Things of a kind that requests are pointed to: those that were made last.
POOL_MAX = 6
# So often a machine asks for a task before there is something wrong.
CLAIMS_MAX = 5
ISSUES_AT_ONCE = 20

session = requests.Session()
numbers = count(1)
answers = {}


# Preparing things, beside what is fuzzed


def ask(method, path, body=None, headers=None):
    """The answer to a request that prepares something. It must not fail either."""
    token = TOKENS[path.split("/")[2]]
    form = {"files": body} if path.endswith("/attachments") else {"json": body}
    headers = {"Authorization": f"Bearer {token}", **(headers or {})}
    answer = session.request(method, URL + path, headers=headers, timeout=10, **form)
    if answer.status_code >= 500:
        raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text}")
    return answer


def made(path, body):
    answer = ask("POST", "/api/v1" + path, body)
    if answer.status_code != 201:
        raise RuntimeError(f"POST {path}: {answer.status_code} {answer.text}")
    return answer.json()["data"]["id"]


def machine(path, body, lease=None):
    headers = {**VERSION, "X-Felagi-Client-Capabilities": CAPABILITIES[1]}
    if lease:
        headers["X-Felagi-Lease"] = lease
    return ask("POST", "/api/daemon/" + path, body, headers)


def register():
    body = {"daemon_id": DAEMON, "name": DAEMON, "version": "0.3.0", "providers": [PROVIDER]}
    return machine("register", body).json()["runtimes"][0]["id"]


def make_agent():
    return made("/agents", {"name": f"Agent {next(numbers)}", "provider": PROVIDER, "concurrency": 1000})


def make_issue(agent=None):
    body = {"title": f"Issue {next(numbers)}"}
    if agent:
        body |= {"assignee_type": "agent", "assignee_id": agent}
    return made("/issues", body)


def make_skill():
    files = [{"path": "a/b.md", "content": "b"}]
    return made("/skills", {"name": f"skill-{next(numbers)}", "content": "# Skill", "files": files})


def make_comment():
    issue = make_issue()
    comment = made(f"/issues/{issue}/comments", {"body": "<p>Look</p>"})
    issue_of[comment] = issue
    return comment


def make_attachment():
    comment = make_comment()
    path = f"/issues/{issue_of[comment]}/comments/{comment}/attachments"
    attachment = made(path, {"file": ("a.txt", b"text", "text/plain")})
    comment_of[attachment] = comment
    return attachment


def make_member():
    return made("/members", {"email": f"person-{next(numbers)}@example.com"})


MAKERS = {
    "agent": make_agent,
    "issue": make_issue,
    "skill": make_skill,
    "comment": make_comment,
    "attachment": make_attachment,
    "user": make_member,
    "project": lambda: made("/projects", {"name": f"Project {next(numbers)}"}),
    "repository": lambda: made("/repositories", {"url": f"https://example.com/{next(numbers)}.git"}),
    "token": lambda: made("/tokens", {"name": "other", "kind": "api", "user_id": make_member()}),
}
MADE_BY = {
    "/api/v1/agents": "agent",
    "/api/v1/issues": "issue",
    "/api/v1/skills": "skill",
    "/api/v1/issues/{issue}/comments": "comment",
    "/api/v1/issues/{issue}/comments/{comment}/attachments": "attachment",
    "/api/v1/members": "user",
    "/api/v1/projects": "project",
    "/api/v1/repositories": "repository",
    "/api/v1/tokens": "token",
}


# Tasks

held = {}


def claim():
    """A task with its lease. When what was queued was paused or cancelled meanwhile, more is made."""
    for _ in range(CLAIMS_MAX):
        answer = machine("tasks/claim", {"daemon_id": DAEMON})
        if answer.status_code == 200:
            task = answer.json()["data"]
            return {"id": task["id"], "lease": task["lease_token"], "next": 1}
        register()
        agent = make_agent()
        for _ in range(ISSUES_AT_ONCE):
            make_issue(agent)
    raise RuntimeError("there is no task to be had")


def hold(action):
    """A task in the state that the action is for."""
    if action not in held:
        task = claim()
        own, lease = f"tasks/{task['id']}/", task["lease"]
        if action != "start":
            machine(own + "start", None, lease)
        if action in ("resume", "decision"):
            machine(own + "await", {"waiting_for": "approval", "summary": "May I?"}, lease)
        if action == "cancel-ack":
            ask("POST", f"/api/v1/{own}cancel")
        if action == "retry":
            machine(own + "fail", {"error": "No.", "retryable": False}, lease)
        held[action] = task
    return held[action]


def action_of(case):
    """What a request does with a task; None when it is about something else, or takes another method."""
    above, _, action = case.path.rpartition("/tasks/{task}/")
    return action if above and case.method == case.operation.method.upper() == "POST" else None


# Things

issue_of, comment_of = {}, {}
me = ask("GET", "/api/v1/me").json()["user"]["id"]
# What must outlive the run: ourselves, and our tokens.
OURS = {"user": {me}, "token": {token["id"] for token in ask("GET", "/api/v1/tokens").json()["data"]}}
runtime = register()
things = {kind: [make()] for kind, make in MAKERS.items()}
agent = things["agent"][0]
issue = make_issue(agent)
tasks = [hold("messages")["id"], hold("decision")["id"], hold("retry")["id"]]
ask("PUT", f"/api/v1/agents/{agent}/skills/{things['skill'][0]}")
ask("POST", f"/api/v1/issues/{issue}/time", {"minutes": 5})
things |= {"runtime": [runtime], "task": tasks}

WORDS = {
    **things,
    "agent_id": things["agent"],
    "assignee": ["me", "none", "user:1", "agent:1", "agent:", "user:9223372036854775808"],
    "status": ["todo", "todo,done", "todo,,done", "todo,nothing"],
    "state": ["queued", "queued,running", "completed,failed,canceled", ",", "running,nothing"],
    "project_id": things["project"],
    "from": ["2020-01-01", "2020-01-01T00:00:00+14:00", "0001-01-01", "-262143-01-01"],
    "to": ["2030-12-31", "2030-12-31T23:59:59.999999999Z", "9999-12-31", "+262142-12-31", "2030-02-30"],
}
FIELDS = {
    "project_id": things["project"],
    "assignee_id": things["agent"],
    "user_id": things["user"],
    "runtime_id": things["runtime"],
    "provider": [PROVIDER],
    "daemon_id": [DAEMON],
}
# What must be of a form, or new.
FRESH = {"name": "name-{}", "email": "person-{}@example.org", "url": "https://example.org/{}.git"}


# Pointing requests to them


def choose(drawn, salt, choices):
    """One of the choices, or None when what was generated shall stay."""
    drawn = zlib.crc32(salt.encode(), drawn)
    return None if drawn % KEPT_ONE_OF == 0 else choices[drawn // KEPT_ONE_OF % len(choices)]


def drawn_from(case):
    """A number that stands for all that was generated."""
    headers = sorted((name, value) for name, value in case.headers.items() if name != "Authorization")
    whole = repr((case.method, case.path, case.path_parameters, headers, case.query, case.body))
    return zlib.crc32(whole.encode(errors="replace"))


def right(case, location):
    """Whether this part of the request was generated to be right."""
    part = case.meta.components.get(location) if case.meta else None
    return part is None or part.mode is GenerationMode.POSITIVE


def point(drawn, values, words):
    for name in values:
        value = choose(drawn, name, words[name]) if name in words else None
        if value is not None:
            values[name] = value


def is_ours(name, value):
    try:
        return int(str(value)) in OURS[name]
    except ValueError:
        return False


def point_path(drawn, case):
    names = case.path_parameters
    if right(case, ParameterLocation.PATH):
        point(drawn, names, things)
        # A file and a comment are found below their own only.
        if names.get("attachment") in things["attachment"]:
            names["comment"] = comment_of[names["attachment"]]
        if names.get("comment") in issue_of:
            names["issue"] = issue_of[names["comment"]]
    for name in OURS:
        if name in names and is_ours(name, names[name]):
            names[name] = things[name][0]


def lend(drawn, case):
    """A task that is there, and its lease."""
    action = action_of(case)
    if action and right(case, ParameterLocation.PATH) and choose(drawn, "task", [True]):
        task = hold(action)
        case.path_parameters["task"] = task["id"]
        if case.path.startswith("/api/daemon/") and right(case, ParameterLocation.HEADER):
            case.headers["X-Felagi-Lease"] = task["lease"]
        in_order = isinstance(case.body, dict) and right(case, ParameterLocation.BODY)
        if action == "messages" and in_order and choose(drawn, "order", [True]):
            for seq, line in enumerate(case.body["messages"], task["next"]):
                line["seq"] = seq


@schemathesis.hook
def before_call(context, case, kwargs):
    drawn = drawn_from(case)
    if isinstance(case.path_parameters, dict):
        point_path(drawn, case)
        lend(drawn, case)
    if isinstance(case.query, dict) and right(case, ParameterLocation.QUERY):
        point(drawn, case.query, WORDS)
    if isinstance(case.body, dict) and right(case, ParameterLocation.BODY):
        point(drawn, case.body, {name: [form.format(next(numbers))] for name, form in FRESH.items()})
        if case.path != "/api/daemon/register":
            point(drawn, case.body, FIELDS)
    if case.path == "/api/daemon/tasks/claim" and choose(drawn, "work", [True]):
        register()
        make_issue(make_agent())
    if case.path.startswith("/api/daemon/") and right(case, ParameterLocation.HEADER):
        capabilities = choose(drawn, "capabilities", CAPABILITIES)
        if capabilities is not None:
            case.headers.pop("X-Felagi-Client", None)
            case.headers.update({**VERSION, "X-Felagi-Client-Capabilities": capabilities})


# What became of them


def remember(kind, case, made_id):
    if kind == "comment":
        issue_of[made_id] = case.path_parameters["issue"]
    if kind == "attachment":
        comment_of[made_id] = case.path_parameters["comment"]
    things[kind].append(made_id)
    del things[kind][:-POOL_MAX]


def forget(kind, gone):
    """There is always one of each kind."""
    if gone in things[kind]:
        things[kind].remove(gone)
    if kind == "comment":
        for attachment in [it for it in things["attachment"] if comment_of[it] == gone]:
            forget("attachment", attachment)
    if not things[kind]:
        things[kind].append(MAKERS[kind]())


def follow(case, response):
    """What a task, or output, that was lent is good for afterwards."""
    action = action_of(case)
    if action not in held or case.path_parameters.get("task") != held[action]["id"]:
        return
    if response.status_code == 202:
        held[action]["next"] = response.json()["next_seq"]
    elif response.status_code not in (400, 413, 415, 422, 426) and action not in ("messages", "session"):
        del held[action]
    elif response.status_code in (404, 409):
        del held[action]


@schemathesis.hook
def after_call(context, case, response):
    status = response.status_code
    answers[status] = answers.get(status, 0) + 1
    follow(case, response)
    if status == 201 and case.path in MADE_BY and case.method == "POST":
        remember(MADE_BY[case.path], case, response.json()["data"]["id"])
    kind = case.path.rpartition("{")[2].removesuffix("}")
    if status == 204 and case.method == "DELETE" and "/agents/{agent}/" not in case.path:
        forget(kind, case.path_parameters[kind])


@atexit.register
def tell():
    print("answers:", ", ".join(f"{times} × {status}" for status, times in sorted(answers.items())))
