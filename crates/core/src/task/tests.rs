//! Tests of the task machine, rule by rule. The same machine meets random command sequences and a
//! simple model in `tests/task_model/`.

mod admission;
mod cost;
mod ends;
mod kit;
mod queue;
mod restart;
