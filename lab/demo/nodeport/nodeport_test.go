package nodeport

import "testing"

// The table meets the contract: where the endpoint must see the sender, it does.
func TestContract(t *testing.T) {
	cases := Cases()
	if len(cases) != 12 {
		t.Fatalf("%d cases", len(cases))
	}
	for i, c := range cases {
		if c.Number != i+1 || !c.Masqueraded && c.Sees != Sender {
			t.Errorf("%+v", c)
		}
	}
}
