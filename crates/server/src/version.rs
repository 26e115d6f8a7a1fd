//! stub
#[derive(Debug, Clone, Default)]
pub struct Minimums;
pub struct Upgrade {
    pub message: String,
    pub minimum_version: String,
    pub download_url: String,
}
pub fn judge(_: Option<&str>, _: Option<&str>, _: &Minimums) -> Result<(), Upgrade> {
    Ok(())
}
#[derive(Debug, Clone, Default)]
pub struct Capabilities(Vec<String>);
impl Capabilities {
    pub fn parse(t: Option<&str>) -> Self {
        Self(t.unwrap_or_default().split(',').map(|w| w.trim().to_owned()).collect())
    }
    pub fn has(&self, w: &str) -> bool {
        self.0.iter().any(|o| o == w)
    }
}
