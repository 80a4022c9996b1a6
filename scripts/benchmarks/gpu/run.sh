#!/usr/bin/env bash
# Benchmark the published sizes with random weights on a GPU machine, with vLLM and Triton from a bundle.
#   run.sh PREFIX PROFILE OUT [options of run.py]
# PREFIX: the unpacked bundle (env.sh, site/, triton/) and files/, a checkpoint's tokenizer and processor files.
# Writes OUT/report.tar.gz and OUT/server.log.gz; prints the figures as they come. LIMIT: seconds after which it ends and
# reports what it has. HOST_PATH=on: the host-path benchmark first, about 40 s, its server on HOST_CORES ("0 1"). MEDIA=off:
# the Thinker without its audio and vision towers. MPS=on: the engines share a GPU through CUDA's Multi-Process Service.
set -euo pipefail
export BUNDLE=$1
profile=$2 out=$3
shift 3
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../../.."
source "$BUNDLE/env.sh"
# The bundle's stub environment has neither PyYAML nor msgspec; the engines' interpreter is of the same version and has both.
"$ENGINE_PYTHON" - "$BUNDLE"/stubenv/lib/python3.*/site-packages <<'P'
import pathlib, shutil, sys
import msgspec, yaml
for package in (msgspec, yaml):
    source = pathlib.Path(package.__file__).parent
    shutil.copytree(source, pathlib.Path(sys.argv[1]) / source.name, dirs_exist_ok=True)
P
"$ENGINE_PYTHON" scripts/make_tiny_checkpoint.py "$BUNDLE/checkpoint" --files "$BUNDLE/files" \
    --sizes "${CONFIG:-scripts/tiny_checkpoint/published.config.json}"
if [[ ${HOST_PATH:-off} == on ]]; then
    # The host side alone on two processors, the client elsewhere; first with the generators beside it, then without.
    read -ra cores <<<"${HOST_CORES:-0 1}"
    for engine_cores in "${cores[*]}" "4 5 6 7"; do
        # shellcheck disable=SC2086
        PYTHONPATH=$PWD:$PYTHONPATH timeout --signal TERM 90 "$ENGINE_PYTHON" -m scripts.benchmarks.host_path \
            --cores "${cores[@]}" --engine-cores $engine_cores --serve "$here/serve.sh" --concurrency 1 64 \
            --json "$out/host_path-${engine_cores// /-}.json" || true
    done
fi
sets=(--set "${SETTINGS:-$here/bundle.yaml}")
[[ ${MEDIA:-on} == on ]] || sets+=("$here/text_only.yaml")
export PERF_ANALYZER=${PERF_ANALYZER:-$TRITON_ROOT/bin/perf_analyzer} PYTHONUNBUFFERED=1
status=0
timeout --signal TERM --kill-after 40 "${LIMIT:-560}" "$ENGINE_PYTHON" scripts/benchmarks/run.py --model "$BUNDLE/checkpoint" --profile "$profile" --load-format dummy \
    --serve "$here/serve.sh" "${sets[@]}" --out "$out/report" "$@" || status=$?
if ((status)); then
    echo "---- errors in the server's log ----"
    grep -n -h -i -E "error|exception|assert|traceback" "$out"/report/server-*.log | cut -c1-300 | tail -25
fi
cat "$out"/report/server-*.log | gzip >"$out/server.log.gz"
rm -f "$out"/report/server-*.log
tar -C "$out" -czf "$out/report.tar.gz" report && rm -rf "$out/report"
exit $status
