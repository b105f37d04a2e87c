//! Table of separate GPUs for prefill and decode: their capacities, and the transfer of keys and values.

use fabricast_reports::table::{Cell, Column, Table, Unit, Value};
use fabricast_study::answer::{Answer, PoolRow};

/// Table of the pools of all jobs that have them; `None` if there are none.
pub fn disaggregation_table(answer: &Answer) -> Option<Table> {
    let rows: Vec<_> = answer.results.iter().filter_map(|row| Some((row, row.disaggregation?))).collect();
    let mut table = Table::new(vec![
        Column::new("candidate", "candidate", Unit::Text),
        Column::new("job", "job", Unit::Text),
        Column::new("prefill_gpus", "prefill GPUs", Unit::Number),
        Column::new("prefill_parallel", "prefill parallel", Unit::Text).spare(),
        Column::new("prefill_requests_per_s", "prefill requests/s", Unit::Number),
        Column::new("decode_gpus", "decode GPUs", Unit::Number),
        Column::new("decode_requests_per_s", "decode requests/s", Unit::Number),
        Column::new("kv_gb", "KV GB", Unit::Number).spare(),
        Column::new("kv_transfer_s", "transfer s", Unit::Number),
        Column::new("kv_exposed_s", "exposed s", Unit::Number),
        Column::new("kv_requests_per_s", "network requests/s", Unit::Number).spare(),
        Column::new("kv_link_share", "busiest link", Unit::Percent),
        Column::new("balanced_prefill_per_decode", "balanced prefill per decode GPU", Unit::Number),
    ]);
    for (row, pools) in &rows {
        let parallel = |pool: &PoolRow| Cell::from(Value::text(pool.parallel.to_string()));
        let number = |number: f64| Cell::from(Value::Number(number));
        let count = |pool: &PoolRow| Cell::from(Value::Count(pool.gpus));
        let transfer = &pools.transfer;
        table.row(vec![
            Value::text(&row.candidate).into(),
            Value::text(&row.job).into(),
            count(&pools.prefill),
            parallel(&pools.prefill),
            number(pools.prefill.requests_per_s),
            count(&pools.decode),
            number(pools.decode.requests_per_s),
            number(transfer.bytes as f64 / 1e9),
            number(transfer.time_s),
            number(transfer.exposed_s),
            number(transfer.requests_per_s),
            Value::Share(transfer.link_share).into(),
            number(pools.balanced_prefill_per_decode),
        ]);
    }
    table.note(
        "requests/s: what each part serves at full load; parallel, step and memory above are those of decode"
            .to_owned(),
    );
    table.heading("prefill and decode on separate GPUs");
    (!rows.is_empty()).then_some(table)
}
