//! The examples, as a reader of the pages would run them.
