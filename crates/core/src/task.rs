//! The task machine: placeholder, see the contract.
