//! What a run used and cost: its own share, never the session's.

use ostler_core::outcome::{CostMicros, Usage};

use super::wire::{Event, Items, ModelUsage, Tokens};

/// What the run used and cost.
///
/// Both are added up from what each model used since the last result, where that is said: after a
/// resume `total_cost_usd` counts the whole session, and `usage` is empty when a budget ended the
/// run. Without it `usage` is the run's own, and the total cost is believed only when the tokens it
/// stands for are exactly the run's; else there is no figure, rather than a wrong one.
#[derive(Default)]
pub(super) struct Spending {
    usage: Option<Usage>,
    cost_usd: Option<f64>,
    /// The price of some model is not known to Claude Code, and the figure is a guess.
    guessed: bool,
    /// Some part of the cost is not known, so the sum is not.
    incomplete: bool,
}

impl Spending {
    pub(super) fn add(&mut self, event: &Event<'_>) {
        let since = event.model_usage_since_last_result.as_ref();
        let stated = event.usage.map(stated_usage);
        let usage = since.map(models_usage).filter(|usage| *usage != Usage::default()).or(stated);
        if let Some(usage) = usage {
            self.usage = Some(sum(self.usage.unwrap_or_default(), usage));
        }
        let all = event.model_usage.as_ref().filter(|all| is_own(all, stated));
        let Some(own) = since.or(all) else {
            self.incomplete = true;
            return;
        };
        let cost: f64 = own.0.iter().filter_map(|model| model.cost_usd).sum();
        self.incomplete |= own.0.iter().any(|model| model.cost_usd.is_none());
        self.guessed |= own.0.iter().any(|model| model.cost_basis.as_deref() == Some("unknown"));
        self.cost_usd = Some(self.cost_usd.unwrap_or_default() + cost);
    }

    pub(super) fn usage(&self) -> Option<Usage> {
        self.usage
    }

    pub(super) fn cost(&self) -> Option<CostMicros> {
        let micros = (self.cost_usd? * 1e6).round();
        let known = !self.incomplete && micros >= 0.0 && micros.is_finite();
        known.then_some(CostMicros { amount: micros as u64, estimated: self.guessed })
    }
}

/// Whether the models' counts are the run's own and not the session's.
fn is_own(all: &Items<ModelUsage<'_>>, stated: Option<Usage>) -> bool {
    let counted = models_usage(all);
    stated.is_some_and(|usage| {
        (usage.input_tokens, usage.output_tokens) == (counted.input_tokens, counted.output_tokens)
    })
}

fn models_usage(models: &Items<ModelUsage<'_>>) -> Usage {
    models.0.iter().fold(Usage::default(), |total, model| {
        let one = Usage {
            input_tokens: model.input_tokens,
            cache_read_tokens: model.cache_read_tokens,
            cache_write_tokens: model.cache_write_tokens,
            output_tokens: model.output_tokens,
            reasoning_tokens: model.thinking_tokens,
        };
        sum(total, one)
    })
}

fn stated_usage(tokens: Tokens) -> Usage {
    Usage {
        input_tokens: tokens.input_tokens,
        cache_read_tokens: tokens.cache_read_input_tokens,
        cache_write_tokens: tokens.cache_creation_input_tokens,
        output_tokens: tokens.output_tokens,
        reasoning_tokens: tokens.output_tokens_details.and_then(|details| details.thinking_tokens),
    }
}

fn sum(a: Usage, b: Usage) -> Usage {
    let add = |a: Option<u64>, b: Option<u64>| match (a, b) {
        (Some(a), Some(b)) => Some(a.saturating_add(b)),
        (a, b) => a.or(b),
    };
    Usage {
        input_tokens: add(a.input_tokens, b.input_tokens),
        cache_read_tokens: add(a.cache_read_tokens, b.cache_read_tokens),
        cache_write_tokens: add(a.cache_write_tokens, b.cache_write_tokens),
        output_tokens: add(a.output_tokens, b.output_tokens),
        reasoning_tokens: add(a.reasoning_tokens, b.reasoning_tokens),
    }
}
