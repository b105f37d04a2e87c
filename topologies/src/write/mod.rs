//! Writers: from a [`Fabric`](crate::Fabric) to text that other tools, or our own readers, take.

pub mod dot;
pub mod json;
pub mod nccl_xml;
pub mod spec;
