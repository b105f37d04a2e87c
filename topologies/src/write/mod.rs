//! Writers from a [`Fabric`](crate::Fabric) to text formats that other tools or the readers of this crate accept.

pub mod dot;
pub mod json;
pub mod nccl_xml;
pub mod spec;
