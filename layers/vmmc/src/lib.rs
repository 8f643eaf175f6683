//! VMMC
#![warn(missing_docs)]
pub mod track;
