//! stub
pub fn html_to_markdown(t: &str) -> String {
    t.to_owned()
}
pub fn markdown_to_html(t: &str) -> String {
    t.to_owned()
}
