//! Plain functions for fuzzing.
