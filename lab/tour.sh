#!/bin/bash
# Writes docs/start/tour.md from a real run on the cluster that `make cluster` left up: Hairpin is removed, installed, asked, upgraded and
# removed again, with the commands that an administrator would type. In the end it is installed, as before.
set -euo pipefail
cd "$(dirname "$0")/.."
export KUBECONFIG=/run/hairpin-lab/cluster/kubeconfig
tools=$(mktemp -d)
page=$tools/tour.md
trap 'rm -rf "$tools"' EXIT
ln -s "$PWD/bin/hairpin" "$tools/kubectl-hairpin"
export PATH=$tools:$PWD/bin:$PATH COLUMNS=150

say() { printf '%s\n\n' "$*" >>"$page"; }
# show COMMAND [FILTER] runs a command and writes what it printed, or of that what a filter leaves.
show() {
	echo "tour: $1" >&2
	# shellcheck disable=SC2016 # backquotes of the page
	{
		printf '```\n$ %s\n' "$1"
		bash -c "$1" 2>&1 | bash -c "${2:-cat}" | sed 's/[[:space:]]*$//; s/\x1b\[[0-9;]*m//g'
		printf '```\n\n'
	} >>"$page"
}
quiet() { "$@" >"$tools/quiet" 2>&1 || { cat "$tools/quiet" >&2; exit 1; }; }
remove() {
	quiet helm upgrade hairpin charts/hairpin --namespace hairpin --reset-then-reuse-values --set cleanup=true
	quiet kubectl --namespace hairpin rollout status daemonset/hairpin-node
	quiet helm uninstall hairpin --namespace hairpin
	quiet kubectl --namespace hairpin wait --for=delete pods --all --timeout 3m
}
# renew makes the pods again: those that were there have lost their network with Hairpin.
renew() {
	quiet kubectl delete pods --all --namespace kube-system
	quiet kubectl delete pods --all
	quiet kubectl rollout status deployment/coredns --namespace kube-system
	quiet kubectl rollout status deployment/web
	quiet kubectl rollout status daemonset/client
}
# The images are on the nodes already: `make cluster` brings those of Hairpin, this those of the next version.
mode=$(helm get values hairpin --namespace hairpin --output json | sed -n 's/.*"mode":"\([a-z]*\)".*/\1/p')
bin/lab cluster import dist/hairpin-next-image.tar
remove

say "# A tour"
say "A complete session: install, inspect, upgrade and remove Hairpin. \`make tour\` wrote this page from a real run: three nodes made by \`make
cluster\`, Kubernetes 1.37, no kube-proxy, no other network plugin. \`…\` stands for lines left out."
say "## Install"
say "Without a network plugin, no node is ready and pods wait."
show "kubectl get nodes"
say "\`make install\` runs \`helm upgrade --install\` with the chart of the checkout, and returns when every node is healthy."
show "make install IMAGE=hairpin:dev VALUES='--set config.gateway.mode=$mode'" "grep -v '^go build\|^make'"
show "kubectl get nodes"
renew
say "## Inspect"
say "\`status\` lists components that are not healthy and objects that cannot be served. \`-o wide\` has a line for every component of every node."
show "kubectl hairpin status"
say "A Service is reached from every pod and every node:"
show "kubectl get service web web-nodeport"
show "kubectl exec daemonset/client -- /bin/pod get --to web.default.svc.cluster.local:80"
say "Where does a packet go? \`explain\` follows it through every table."
show "kubectl hairpin explain host/node-a svc/default/web"
say "Configuration errors appear as Events on the object that caused them."
quiet kubectl patch service web --type merge --patch '{"spec":{"externalIPs":["10.96.0.1"]}}'
for _ in $(seq 100); do kubectl get events --field-selector involvedObject.name=web 2>/dev/null | grep -q 10.96.0.1 && break || sleep 0.1; done
show "kubectl get events --field-selector involvedObject.name=web,reason=HairpinProblem --output custom-columns=REASON:.reason,MESSAGE:.message"
quiet kubectl patch service web --type json --patch '[{"op":"remove","path":"/spec/externalIPs"}]'
say "## Fixed source addresses for pods"
say "An EgressIP gives pods an address outside, an EgressService that of their load balancer. \`status\` shows which node has it."
quiet kubectl label node node-b k8s.ovn.org/egress-assignable=
quiet kubectl expose deployment web --name web-outside --type LoadBalancer --port 80
quiet kubectl patch service web-outside --subresource status --type merge --patch '{"status":{"loadBalancer":{"ingress":[{"ip":"172.18.0.80"}]}}}'
cat >"$tools/egress.yaml" <<'YAML'
apiVersion: k8s.ovn.org/v1
kind: EgressIP
metadata: {name: clients}
spec:
  egressIPs: [172.18.0.33]
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: default}}
  podSelector: {matchLabels: {app: client}}
---
apiVersion: k8s.ovn.org/v1
kind: EgressService
metadata: {name: web-outside, namespace: default}
spec: {sourceIPBy: LoadBalancerIP}
YAML
(cd "$tools" && show "cat egress.yaml" && show "kubectl apply --filename egress.yaml")
quiet kubectl wait --for=jsonpath='{.status.items[0].node}' egressip/clients --timeout 1m
quiet kubectl wait --for=jsonpath='{.status.host}' egressservice/web-outside --timeout 1m
show "kubectl get egressips,egressservices --all-namespaces"
show "kubectl hairpin status" "awk '/^EGRESSIP/, / nodes: /'"
quiet kubectl delete egressip/clients egressservice/web-outside service/web-outside
quiet kubectl label node node-b k8s.ovn.org/egress-assignable-
say "## Upgrade"
say "Upgrade to another build, node by node. Open vSwitch keeps running, so open connections continue."
show "helm upgrade hairpin charts/hairpin --namespace hairpin --reset-then-reuse-values --set image.tag=next" "sed -n 1,8p"
show "kubectl --namespace hairpin rollout status daemonset/hairpin-node" "tail -1"
show "kubectl --namespace hairpin get pods"
show "kubectl hairpin status --wait" "grep ' nodes: '"
say "## Remove"
say "First from the nodes, then from the cluster. The nodes then have their own addresses and devices again."
show "helm upgrade hairpin charts/hairpin --namespace hairpin --reset-then-reuse-values --set cleanup=true" "sed -n 1p"
show "kubectl --namespace hairpin rollout status daemonset/hairpin-node" "tail -1"
show "helm uninstall hairpin --namespace hairpin"
show "kubectl --namespace hairpin wait --for=delete pods --all --timeout 3m" "tail -3"
show "bin/lab --lab cluster exec node-a -- ip -brief address"

quiet make install IMAGE=hairpin:dev VALUES="--set config.gateway.mode=$mode"
renew
mv "$page" docs/start/tour.md
echo docs/start/tour.md
