//! Arguments of the events of a Kineto trace.

use serde::Deserialize;

use super::super::json::Loose;

/// Arguments of an event that the replay needs. The keys are those of PyTorch (`torch/csrc/profiler/util.h`) and of
/// Kineto's GPU activities.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct EventArguments<'a> {
    #[serde(borrow, rename = "External id")]
    pub external: Loose<'a>,
    #[serde(borrow)]
    pub correlation: Loose<'a>,
    #[serde(borrow)]
    pub stream: Loose<'a>,
    #[serde(borrow)]
    pub device: Loose<'a>,
    #[serde(borrow, rename = "Collective name")]
    pub collective: Loose<'a>,
    #[serde(borrow, rename = "In msg nelems")]
    pub input_elements: Loose<'a>,
    #[serde(borrow, rename = "Out msg nelems")]
    pub output_elements: Loose<'a>,
    #[serde(borrow)]
    pub dtype: Loose<'a>,
    #[serde(borrow, rename = "Group size")]
    pub group_size: Loose<'a>,
    #[serde(borrow, rename = "Process Group Name")]
    pub group_name: Loose<'a>,
    #[serde(borrow, rename = "Process Group ID")]
    pub group_id: Loose<'a>,
    #[serde(borrow, rename = "Process Group Ranks")]
    pub group_ranks: Loose<'a>,
    #[serde(borrow, rename = "Global rank start")]
    pub rank_start: Loose<'a>,
    #[serde(borrow, rename = "Global rank stride")]
    pub rank_stride: Loose<'a>,
    #[serde(borrow, rename = "Src Rank")]
    pub source: Loose<'a>,
    #[serde(borrow, rename = "Dst Rank")]
    pub destination: Loose<'a>,
    #[serde(borrow, rename = "Seq")]
    pub sequence: Loose<'a>,
}
