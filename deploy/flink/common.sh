# shellcheck shell=bash
# Functions of the scripts in this folder. A cluster is a folder: conf/, logs/, pids/, checkpoints/, savepoints/.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tree=$(cd "$here/../.." && pwd)
# shellcheck source=deploy/flink/versions
source "$here/versions"
cache=${TIDEGATE_CACHE:-$HOME/.cache/tidegate}
folder=${TIDEGATE_FLINK_FOLDER:-$HOME/.local/state/tidegate/flink}
mix=$(cat "$here/versions" "$here/pom.xml" | cksum | cut -d' ' -f1)
job_server_folder=$cache/flink-job-server-$BEAM_RUNNER-$mix
flink_folder=$cache/flink-$FLINK
job_server_jar=$job_server_folder/tidegate-flink-job-server.jar
# What a cluster was started with; open_cluster fills them in.
# shellcheck disable=SC2034
rest_port='' job_port='' interval='' artifact_port='' expansion_port='' pool_port='' rpc_port='' python=''

# What Java 17 closes and Flink and Beam's Java side reach into.
java_opens=()
for package in java.lang java.lang.invoke java.lang.reflect java.io java.math java.net java.nio java.text java.time java.util \
  java.util.concurrent java.util.concurrent.atomic java.util.concurrent.locks sun.nio.ch sun.net.util; do
  java_opens+=("--add-opens=java.base/$package=ALL-UNNAMED")
done

say() { echo "flink: $*" >&2; }
fail() { say "$*" && exit 1; }
needs() { command -v "$1" >/dev/null || fail "needs $1 ($2); install it and run this again"; }

# The options that every script knows; what is left is in "${rest[@]}".
parse_common() {
  rest=()
  while (($#)); do
    case $1 in
      -h | --help) usage && exit ;;
      --folder) folder=${2:?--folder needs a folder} && shift ;;
      --folder=*) folder=${1#*=} ;;
      --)
        rest+=("$@")
        break
        ;;
      *) rest+=("$1") ;;
    esac
    shift
  done
  case $folder in /*) ;; *) folder=$PWD/$folder ;; esac
}

# The Python that tidegate is installed in: named, or the tree's own, or whatever is on PATH.
find_python() {
  local candidate
  for candidate in "${TIDEGATE_PYTHON:-}" "${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/python}" "$tree/.venv/bin/python" python3 python; do
    if [[ -z $candidate ]] || ! candidate=$(command -v "$candidate"); then continue; fi
    "$candidate" -c 'import importlib.util as u, sys; sys.exit(not (u.find_spec("tidegate") and u.find_spec("apache_beam")))' \
      2>/dev/null && echo "$candidate" && return
  done
  fail "no Python with tidegate in it; pip install it, or name one: TIDEGATE_PYTHON=/path/to/python"
}

needs_artifacts() {
  [[ -f $job_server_jar && -d $flink_folder/lib ]] || "$here/get" >/dev/null
}

open_cluster() {
  [[ -f $folder/conf/settings ]] || fail "no cluster in $folder; run deploy/flink/start first, or name its --folder"
  # shellcheck disable=SC1091
  source "$folder/conf/settings"
}

rest_api() { # method, path, [body]
  curl --silent --show-error --fail-with-body --max-time 30 -X "$1" -H 'Content-Type: application/json' ${3:+--data "$3"} \
    "http://localhost:$rest_port$2"
}

json() { # a Python expression about d
  python3 -c 'import json, sys
d = json.load(sys.stdin)
print(eval(sys.argv[1]))' "$1"
}

# Processes. A pid file holds the id and the moment it began, since ids are used again.
began() { ps -o lstart= -p "$1" 2>/dev/null | tr -s ' '; }

alive() { # name
  local id moment
  [[ -f $folder/pids/$1 ]] && read -r id moment <"$folder/pids/$1" && [[ $(began "$id") == "$moment" ]] && [[ -n $moment ]]
}

launch() { # name, command...
  local name=$1 id
  shift
  setsid nohup "$@" >>"$folder/logs/$name.log" 2>&1 </dev/null 9>&- &
  id=$!
  sleep 0.2 # the moment it began is that of setsid, nohup and the command alike
  echo "$id $(began "$id")" >"$folder/pids/$name"
}

end() { # name, [signal]: it and all that it started
  local id _ waited=0
  alive "$1" || { rm -f "$folder/pids/$1" && return; }
  read -r id _ <"$folder/pids/$1"
  kill "-${2:-TERM}" -- "-$id" 2>/dev/null || true
  while alive "$1" && ((waited < 100)); do sleep 0.1 && waited=$((waited + 1)); done
  kill -KILL -- "-$id" 2>/dev/null || true
  rm -f "$folder/pids/$1"
}

wait_for() { # seconds, name, what, command that succeeds when it is there
  local until=$((SECONDS + $1)) name=$2 what=$3
  shift 3
  while ! "$@" >/dev/null 2>&1; do
    alive "$name" || { tail -n 20 "$folder/logs/$name.log" >&2 && fail "the $what ended at once; its log is $folder/logs/$name.log"; }
    ((SECONDS < until)) || fail "the $what does not answer; its log is $folder/logs/$name.log"
    sleep 0.3
  done
}

listens() { (exec 3<>"/dev/tcp/localhost/$1") 2>/dev/null; }

# The jars themselves, without the one that only points at them.
job_server_classpath() {
  local jar all=''
  for jar in "$job_server_folder"/*.jar; do [[ $jar == "$job_server_jar" ]] || all+=${all:+:}$jar; done
  echo "$all"
}

# submit and resume: SPEC [--batch] [--parallelism N] [-- BEAM OPTIONS]
run_on_cluster() {
  local spec='' batch='' degree='' options=()
  while (($#)); do
    case $1 in
      --batch) batch=yes ;;
      --parallelism) degree=${2:?} && shift ;;
      --parallelism=*) degree=${1#*=} ;;
      --)
        options=("${@:2}")
        break
        ;;
      -*) usage >&2 && exit 2 ;;
      *)
        [[ -z $spec ]] || { usage >&2 && exit 2; }
        spec=$1
        ;;
    esac
    shift
  done
  [[ -n $spec ]] || { usage >&2 && exit 2; }
  open_cluster
  if ! listens "$job_port" || ! listens "$pool_port"; then fail "the cluster in $folder is not whole; run deploy/flink/start"; fi
  degree=${degree:-$parallelism}
  [[ -n $batch ]] || options=(--streaming "${options[@]}")
  # One Python process a slot, since one of them keeps no more than one core busy.
  exec "$python" -m tidegate run "$spec" --runner flink -- --job_endpoint="localhost:$job_port" \
    --environment_type=EXTERNAL --environment_config="localhost:$pool_port" --parallelism="$degree" \
    --sdk_worker_parallelism=$(((degree + task_managers - 1) / task_managers)) "${options[@]}"
}
