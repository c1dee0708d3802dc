# shellcheck shell=bash
# Functions of the scripts in this folder.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck disable=SC2034
tree=$(cd "$here/../.." && pwd)
dry=

say() { echo "dataflow: $*" >&2; }
fail() { say "$*" && exit 1; }
wrong() { say "$*; see --help" && exit 2; }

# Sets a variable of its own for every option that is allowed: --service-account gives $service_account. What follows -- is in
# "${rest[@]}", a word without a dash in $word.
parse() { # allowed options, arguments
  local allowed=" $1 " option
  shift
  rest=() word=''
  while (($#)); do
    case $1 in
      -h | --help) usage && exit ;;
      --dry-run) dry=yes ;;
      --)
        rest=("${@:2}")
        break
        ;;
      --*)
        option=${1%%=*}
        [[ $allowed == *" ${option#--} "* ]] || wrong "there is no option $option"
        if [[ $1 != *=* ]]; then
          (($# > 1)) || wrong "$option needs a value"
          set -- "$1=$2" "${@:3}"
        fi
        option=${option#--}
        printf -v "${option//-/_}" %s "${1#*=}"
        ;;
      *)
        [[ -z $word ]] || wrong "one name is enough, and here are $word and $1"
        word=$1
        ;;
    esac
    shift
  done
}

required() { # options that must have a value, and look as the pattern after the = says
  local option value
  for option in "$@"; do
    value=${option%%=*}
    value=${value//-/_}
    [[ -n ${!value:-} ]] || wrong "--${option%%=*} is required"
    # shellcheck disable=SC2053
    [[ ${!value} == ${option#*=} ]] || wrong "--${option%%=*} must look like ${option#*=}, not ${!value}"
  done
}

# Says what is done before it is done; with --dry-run, nothing is.
run() {
  if [[ -n $dry ]]; then
    printf '%q ' "$@" | sed 's/ $/\n/'
    return
  fi
  command -v "$1" >/dev/null || fail "needs $1 (https://cloud.google.com/sdk/docs/install); install it, or see --dry-run"
  say "$*"
  "$@"
}
