#!/usr/bin/env bash
# The loop, closed on the GPUs of this machine: probe, bench, doctor, calibrate, plan, run, compare. Needs a built fabricast.
#
#   bash validate/runs/loop.sh target/release/fabricast FOLDER
#
# NVLink multicast stays off, also in what is compared with (NCCL_NVLS_ENABLE=0).
set -u
program=$(realpath "$1")
mkdir -p "$2" && cd "$2" || exit 1
export NCCL_NVLS_ENABLE=0 NVSHMEM_DISABLE_NVLS=1

step() {
    printf '\n== %s\n' "fabricast ${*:2}"
    timeout "$1" "$program" "${@:2}"
    local code=$?
    [ "$code" = 0 ] || printf 'exit code %s\n' "$code"
}

step 60 gpu probe --fabric here.toml
step 120 gpu bench --format json -o bench.json
step 30 gpu doctor --from bench.json
# What runs are kernels made of schedules, so the plan is by what these cost, and keeps to no library's choice.
kernels=kernels-h200
grep -q H100 here.toml && kernels=kernels-h100
step 60 calibrate bench.json --profile "$kernels" -o here-profile.toml --name here
step 120 plan --fabric here.toml --collective all --sizes 1KiB..256MiB --no-nvls --library none --profile here-profile.toml \
    --format json -o plan.json
step 240 gpu run --fabric here.toml --plan plan.json --executor kernels,copies,nccl,nccl-symmetric \
    --measurements times --format json -o run.json
step 60 compare times/manifest.toml --no-explain
