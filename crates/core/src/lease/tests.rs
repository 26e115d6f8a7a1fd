//! Tests of the lease machine, written from the protocol's page and its requirements (`f_088_…` is F-088).
//! Random sequences against a simple model stand in `tests/model.rs`.

mod attempts;
mod cancel;
mod ends;
mod grace;
mod kit;
mod leases;
mod lines;
mod model;
mod order;
mod table;
mod waits;
mod why;
