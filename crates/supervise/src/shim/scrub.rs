//! placeholder: replaced below
pub(super) struct Scrubber;
impl Scrubber {
    pub(super) fn new(_secrets: &[Vec<u8>]) -> Self {
        Self
    }
    pub(super) fn push(&mut self, bytes: &[u8], out: &mut dyn FnMut(&[u8])) {
        out(bytes)
    }
    pub(super) fn finish(&mut self, _out: &mut dyn FnMut(&[u8])) {}
}
