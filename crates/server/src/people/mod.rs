//! The people side.
