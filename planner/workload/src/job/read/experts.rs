//! Conversion of the keys of dispatch and combine, which training and inference share.

use super::super::{Dispatch, DispatchPrecision, Dispatcher, DispatcherOrigin, ExpertOverlap, Framework, JobError};
use super::{JobText, KindKey, Validator, kind_key};

impl JobText {
    /// Returns the keys of dispatch and combine.
    pub(super) fn expert_keys(&self) -> Vec<KindKey> {
        vec![
            kind_key("dispatcher", &self.dispatcher),
            kind_key("dispatch_precision", &self.dispatch_precision),
            kind_key("expert_overlap", &self.expert_overlap),
        ]
    }

    /// Returns the dispatch of a job whose model has `experts` experts; what it does not state is the default of its
    /// software.
    pub(super) fn dispatch(
        &self,
        check: Validator<'_>,
        software: &Framework,
        experts: u64,
    ) -> Result<Dispatch, JobError> {
        if experts == 0
            && let Some((name, span)) = self.expert_keys().into_iter().find_map(|(name, span)| Some((name, span?)))
        {
            return Err(check.error(span, format!("{name}: the model has no experts")));
        }
        let dispatcher = self.dispatcher.as_ref().map(|dispatcher| *dispatcher.get_ref());
        let precision = self.dispatch_precision.as_ref().map(|precision| *precision.get_ref());
        let precision = precision.or(software.dispatch_precision);
        let dispatcher_or_default = dispatcher.or(software.dispatcher).unwrap_or_default();
        if let Some(stated) = &self.dispatch_precision
            && *stated.get_ref() == DispatchPrecision::Nvfp4
            && !matches!(dispatcher_or_default, Dispatcher::TensorRt | Dispatcher::TensorRtOneSided)
        {
            let message = "dispatch_precision: only trtllm and trtllm-one-sided dispatch nvfp4: expected bf16 or fp8";
            return Err(check.error(stated.span(), message.to_owned()));
        }
        Ok(Dispatch {
            dispatcher: dispatcher_or_default,
            origin: if dispatcher.is_some() { DispatcherOrigin::Stated } else { DispatcherOrigin::Software },
            precision,
            overlap: match self.expert_overlap.as_ref().is_some_and(|overlap| *overlap.get_ref()) {
                true => ExpertOverlap::TwoBatches,
                false => ExpertOverlap::Off,
            },
        })
    }
}
