package plan_test

import (
	"fmt"
	"testing"

	"hairpin/datapath/flow"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
	"hairpin/plan"
)

func TestShow(t *testing.T) {
	a, b := node("ovn-worker", 3, 3), node("ovn-worker2", 4, 4)
	a.Gateway.Userspace = true
	s := snapshot(a, b, pod("ovn-worker", "web", "10.244.3.3", "fd00:10:244:3::3"),
		service("web-service", "10.96.146.87:80", 30015, "10.244.3.3:80"),
		service("self", "10.96.146.88:80", 0, "172.18.0.3:80", "172.18.0.4:80"))
	st, problems := plan.Node(s, "ovn-worker")
	fmt.Println(problems)
	fmt.Println(nb.Print(st.NB))
	fmt.Println(flow.Print(st.Bridge))
	fmt.Println(nft.Print(st.NFT))
}
