#!/usr/bin/env bash
# Runs a command beside a Slurm cluster of its own and exits with its code:  slurm_cluster.sh HOSTS COMMAND...
#
# All of it lives in namespaces, so nothing of it is seen outside, several clusters do not meet, and nothing is left when the command ends.
# Each compute host (node1 … nodeN) has an address, a host name, a slurmd, and a disk of its own at $CLUSTER/disk; every other path is shared by
# all of them, as a parallel file system would be. The command runs on the controller, with SLURM_CONF and CLUSTER set; there $CLUSTER/disks/nodeI
# is node I's disk.
#
# Needs root and the packages slurm-wlm, munge and iproute2. Exit 77: not possible here, and why, on stderr.
set -euo pipefail
readonly network=10.213.7

impossible() { echo "slurm_cluster: $*" >&2; exit 77; }

enter_namespaces() {
  local tool
  [ "$(id -u)" = 0 ] || impossible "needs root"
  for tool in slurmctld slurmd srun munged mungekey ip unshare; do
    command -v "$tool" >/dev/null || impossible "$tool is not installed (packages slurm-wlm, munge, iproute2)"
  done
  local isolate=(unshare --fork --kill-child --pid --mount --propagation unchanged --net --uts)  # in a chroot there is no root mount to change
  "${isolate[@]}" ip link add probe type bridge 2>/dev/null || impossible "namespaces or network bridges are not allowed here"
  CLUSTER=$(mktemp -d "${TMPDIR:-/tmp}/cluster.XXXXXX")
  export CLUSTER
  chmod 755 "$CLUSTER"
  local code=0
  IN_NAMESPACES=1 "${isolate[@]}" "$0" "$@" || code=$?
  rm -rf --one-file-system "$CLUSTER"
  exit "$code"
}

write_configuration() {
  local hosts=$1 host
  mkdir -p "$CLUSTER"/{state,log,run,disk}
  cat >"$CLUSTER/slurm.conf" <<END
ClusterName=unshard
SlurmctldHost=controller($network.254)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$CLUSTER/run/munge.socket
StateSaveLocation=$CLUSTER/state
SlurmdSpoolDir=$CLUSTER/spool/%n
SlurmctldPidFile=$CLUSTER/run/slurmctld.pid
SlurmdPidFile=$CLUSTER/run/%n.pid
SlurmctldLogFile=$CLUSTER/log/slurmctld
SlurmdLogFile=$CLUSTER/log/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerType=sched/builtin
MpiDefault=none
END
  printf '127.0.0.1 localhost\n%s.254 controller\n' "$network" >"$CLUSTER/hosts"
  for host in $(seq "$hosts"); do
    mkdir -p "$CLUSTER/spool/node$host" "$CLUSTER/disks/node$host"
    echo "NodeName=node$host NodeAddr=$network.$host CPUs=4 RealMemory=4000" >>"$CLUSTER/slurm.conf"
    echo "$network.$host node$host" >>"$CLUSTER/hosts"
  done
  echo "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP" >>"$CLUSTER/slurm.conf"
  # Slurm 22 has no `disabled`; with v1 it does not look for systemd.
  if slurmd -V | grep -qE ' (2[0-2]|23\.02)'; then
    printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n' >"$CLUSTER/cgroup.conf"
  else
    echo 'CgroupPlugin=disabled' >"$CLUSTER/cgroup.conf"
  fi
  printf 'PMIxCliTmpDirBase=%s\nPMIxEnv=PMIX_MCA_ptl_tcp_if_include=eth0\n' "$CLUSTER/disk" >"$CLUSTER/mpi.conf"
}

start_controller() {
  mount --make-rprivate / 2>/dev/null || true
  mount -t proc proc /proc
  hostname controller
  mount --bind "$CLUSTER/hosts" /etc/hosts
  mount -t tmpfs tmpfs /run  # where `ip netns` keeps its names
  ip link set lo up
  ip link add hosts type bridge
  ip addr add "$network.254/24" dev hosts
  ip link set hosts up
  mungekey --create --keyfile "$CLUSTER/run/munge.key"
  munged --key-file "$CLUSTER/run/munge.key" --socket "$CLUSTER/run/munge.socket" --pid-file "$CLUSTER/run/munge.pid" \
    --log-file "$CLUSTER/log/munge" --seed-file "$CLUSTER/run/munge.seed"
  slurmctld -f "$SLURM_CONF"
}

start_host() {
  local host=node$1 number=$1
  ip netns add "$host"
  ip link add "to-$host" type veth peer name eth0 netns "$host"
  ip link set "to-$host" master hosts up
  nsenter --net="/run/netns/$host" unshare --uts --mount --propagation unchanged bash -c "
    ip addr add $network.$number/24 dev eth0 && ip link set eth0 up && ip link set lo up &&
    hostname $host && mount --bind $CLUSTER/disks/$host $CLUSTER/disk && exec slurmd -N $host -f $SLURM_CONF"
}

wait_for_hosts() {
  local try
  for try in $(seq 150); do
    [ "$(sinfo -h -t idle -o %D 2>/dev/null)" = "$1" ] && return
    sleep 0.2
  done
  sinfo >&2 || true
  tail -n 5 "$CLUSTER"/log/* >&2
  echo "slurm_cluster: not all hosts came up" >&2
  exit 1
}

main() {
  local hosts=$1 host
  shift
  export SLURM_CONF=$CLUSTER/slurm.conf
  unset IN_NAMESPACES
  write_configuration "$hosts"
  start_controller
  for host in $(seq "$hosts"); do start_host "$host"; done
  wait_for_hosts "$hosts"
  "$@"
}

[ $# -ge 2 ] || { echo "usage: slurm_cluster.sh HOSTS COMMAND..." >&2; exit 2; }
if [ -z "${IN_NAMESPACES:-}" ]; then enter_namespaces "$@"; else main "$@"; fi
