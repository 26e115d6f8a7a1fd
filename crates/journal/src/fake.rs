//! A disk that loses what was not synced.
