//! Attachments: files of comments, in and out. A file is never shown by a browser as a page of this server:
//! it is downloaded.

use std::sync::PoisonError;

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, FromRequest as _, Multipart, Request};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;

use super::call::{Call, Sent, created};
use super::comments::check_own;
use crate::bodies;
use crate::http::Fault;
use crate::store::sql::people::attachments::{self, NewAttachment};

/// Bytes of one file.
pub(super) const FILE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Bytes that a form may have beside its file.
const FORM_BYTES_MAX: usize = 64 * 1024;
/// Bytes of a file's name; what is longer is cut before its ending.
const NAME_BYTES_MAX: usize = 200;
/// Bytes of a content type.
const TYPE_BYTES_MAX: usize = 100;
/// What a file is when nobody said.
const UNKNOWN_TYPE: &str = "application/octet-stream";

/// `POST /issues/{issue}/comments/{comment}/attachments`
pub(super) async fn create(mut call: Call) -> Result<Response, Fault> {
    let (issue, comment) = (call.issue()?, call.id("comment")?);
    let Sent::Raw(body) = std::mem::replace(&mut call.sent, Sent::Nothing) else {
        return Err(Fault::field("file", "is required"));
    };
    let body = body.into_inner().unwrap_or_else(PoisonError::into_inner);
    let new = read(&call, body).await?;
    check_own(&call, issue, comment, false).await?;
    let workspace_id = call.workspace();
    let made =
        call.write(move |tx| Box::pin(attachments::create(tx, workspace_id, issue, comment, new)));
    Ok(created(&made.await?))
}

async fn read(call: &Call, body: Body) -> Result<NewAttachment, Fault> {
    let bytes_max = FILE_BYTES_MAX + FORM_BYTES_MAX;
    let (bytes, _room) = call.app.bodies.read(&call.headers, body, bytes_max).await?;
    let mut request = Request::new(Body::from(bytes));
    *request.headers_mut() = call.headers.clone();
    // The bytes were counted already.
    DefaultBodyLimit::disable().apply(&mut request);
    let form = Multipart::from_request(request, &()).await;
    let mut form = form.map_err(|_| {
        let message = "Send the file as multipart/form-data, in the field `file`.";
        Fault::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported", message)
    })?;
    let bad = |_| Fault::new(StatusCode::BAD_REQUEST, "bad_form", "The form is not readable.");
    let mut file = None;
    while let Some(field) = form.next_field().await.map_err(bad)? {
        if field.name() != Some("file") {
            return Err(Fault::field("file", "must be the only field"));
        }
        let name = sane_name(field.file_name().unwrap_or_default());
        let content_type = sane_type(field.content_type().unwrap_or_default());
        let bytes = field.bytes().await.map_err(bad)?.to_vec();
        if bytes.len() > FILE_BYTES_MAX {
            let message = format!("The file is larger than {FILE_BYTES_MAX} bytes.");
            return Err(Fault::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message));
        }
        if file.replace(NewAttachment { name, content_type, bytes }).is_some() {
            return Err(Fault::field("file", "must be there once"));
        }
    }
    file.ok_or_else(|| Fault::field("file", "is required"))
}

/// The last part of a path of any system, without what a file system, a terminal or a reader could take for
/// something else.
pub(crate) fn sane_name(sent: &str) -> String {
    let last = sent.rsplit(['/', '\\']).next().unwrap_or_default();
    let kept =
        |c: &char| !c.is_control() && !crate::text::is_invisible(*c) && !"<>:\"|?*".contains(*c);
    let name: String = last.chars().filter(kept).collect();
    let at_edges = |c: char| c == '.' || c.is_whitespace();
    let name = name.trim_matches(at_edges);
    if name.is_empty() {
        return "file".to_owned();
    }
    if name.len() <= NAME_BYTES_MAX {
        return name.to_owned();
    }
    let (stem, ending) = match name.rsplit_once('.') {
        Some((stem, ending)) if ending.len() <= 16 => (stem, format!(".{ending}")),
        _ => (name, String::new()),
    };
    let stem = crate::text::cut(stem, NAME_BYTES_MAX - ending.len());
    format!("{}{ending}", stem.trim_end_matches(at_edges))
}

fn sane_type(sent: &str) -> String {
    let essence = sent.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let token = |part: &str| {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&byte);
        !part.is_empty() && part.bytes().all(known)
    };
    let good = essence.len() <= TYPE_BYTES_MAX
        && essence.split_once('/').is_some_and(|(kind, form)| token(kind) && token(form));
    if good { essence } else { UNKNOWN_TYPE.to_owned() }
}

/// `GET /issues/{issue}/comments/{comment}/attachments/{attachment}`
pub(super) async fn download(call: Call) -> Result<Response, Fault> {
    let (issue, comment) = (call.issue()?, call.id("comment")?);
    let id = call.id("attachment")?;
    let mut conn = call.reader().await?;
    // Only now: who waits for a connection holds nothing.
    let room = call.app.bodies.room_for_file(FILE_BYTES_MAX)?;
    let file = attachments::content(&mut conn, call.workspace(), issue, comment, id).await?;
    let length = file.bytes.len();
    let mut response = Response::new(bodies::file(file.bytes, room));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, length.into());
    let kind = HeaderValue::from_str(&file.content_type);
    headers.insert(
        header::CONTENT_TYPE,
        kind.unwrap_or_else(|_| HeaderValue::from_static(UNKNOWN_TYPE)),
    );
    let disposition = HeaderValue::from_str(&disposition(&file.name));
    headers.insert(
        header::CONTENT_DISPOSITION,
        disposition.unwrap_or_else(|_| HeaderValue::from_static("attachment")),
    );
    let fixed = [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox"),
        (header::CACHE_CONTROL, "private, no-store"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    Ok(response)
}

/// The name for old readers, in ASCII, and as it is (RFC 6266).
pub(crate) fn disposition(name: &str) -> String {
    let plain: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || " ._-()".contains(c) { c } else { '_' })
        .collect();
    let mut exact = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"._-".contains(&byte) {
            exact.push(char::from(byte));
        } else {
            exact.push_str(&format!("%{byte:02X}"));
        }
    }
    format!("attachment; filename=\"{plain}\"; filename*=UTF-8''{exact}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_files_name_is_its_last_part_without_tricks() {
        for (sent, name) in [
            ("report.pdf", "report.pdf"),
            ("../../etc/passwd", "passwd"),
            ("C:\\Users\\a\\b.txt", "b.txt"),
            ("a\r\nSet-Cookie: x.txt", "aSet-Cookie x.txt"),
            ("..", "file"),
            ("", "file"),
            (".bashrc", "bashrc"),
            ("invoice\u{202e}gpj.exe", "invoicegpj.exe"),
            ("Übersicht.md", "Übersicht.md"),
        ] {
            assert_eq!(sane_name(sent), name, "{sent:?}");
        }
        let long = sane_name(&format!("{}.tar.gz", "ä".repeat(500)));
        assert!(long.len() <= NAME_BYTES_MAX && long.ends_with(".gz"), "{long}");
        // No part that is left ends as no name may end.
        let cut = sane_name(&format!("{}. {}", "x".repeat(NAME_BYTES_MAX - 2), "y".repeat(20)));
        assert_eq!(cut, "x".repeat(NAME_BYTES_MAX - 2));
    }

    #[test]
    fn a_content_type_is_two_tokens_or_unknown() {
        assert_eq!(sane_type("Text/HTML; charset=utf-8"), "text/html");
        for sent in ["", "text", "a/b\r\nx: y", "text/ht ml", "/x"] {
            assert_eq!(sane_type(sent), UNKNOWN_TYPE, "{sent:?}");
        }
    }

    #[test]
    fn a_disposition_cannot_be_left() {
        let text = disposition("a\"; x=\"ü.txt");
        assert_eq!(
            text,
            "attachment; filename=\"a__ x__ _.txt\"; filename*=UTF-8''a%22%3B%20x%3D%22%C3%BC.txt"
                .replace("a__ x__ _", "a__ x___")
        );
    }
}
