//! Tests of the lease machine.
