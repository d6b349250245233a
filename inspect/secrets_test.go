package inspect_test

import (
	"strings"
	"testing"

	"hairpin/inspect"
)

// TestWithoutSecrets checks that what looks like a secret is removed, and other text stays.
func TestWithoutSecrets(t *testing.T) {
	const jwt = "eyJhbGciOiJSUzI1NiIsImtpZCI6IkEifQ.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJl"
	for _, secret := range []string{
		"token: abcdef.0123456789abcdef", `{"password":"hunter2hunter2"}`, "Authorization: Bearer " + jwt, jwt,
		"client-key-data: LS0tLS1CRUdJTg==",
		"psk=0x1234abcd", "https://user:hunter2@registry/",
		"-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----",
		"-----BEGIN EC PRIVATE KEY-----\nMIIE",
	} {
		got := string(inspect.WithoutSecrets([]byte("before " + secret + "\nafter 10.96.0.1:443")))
		for _, part := range []string{"hunter2", "0123456789abcdef", "c2lnbmF0dXJl", "LS0tLS1CRUdJTg", "1234abcd",
			"MIIE"} {
			if strings.Contains(got, part) {
				t.Errorf("%q leaves %q", secret, got)
			}
		}
		if !strings.HasPrefix(got, "before ") || !strings.HasSuffix(got, "10.96.0.1:443") &&
			!strings.Contains(secret, "EC PRIVATE") {
			t.Errorf("%q takes more than the secret: %q", secret, got)
		}
	}
	for _, plain := range []string{
		"cookie=0x10deff105,table=0,priority=500,ip,in_port=LOCAL,nw_dst=10.96.0.0/16 " +
			"actions=ct(commit,table=2,zone=64001,nat(src=169.254.169.2)) # Node/node-a",
		"lb-add default/secret-store:tcp/tcp/IPv4 10.96.1.3:80 169.254.169.2:8081 tcp",
		"ip daddr . meta l4proto . th dport map @nodeports4",
		"unix:/run/ovn/ovnnb_db.sock", "https://172.18.0.10:6443/api/v1/nodes",
	} {
		if got := string(inspect.WithoutSecrets([]byte(plain))); got != plain {
			t.Errorf("%q is no secret: %q", plain, got)
		}
	}
}
