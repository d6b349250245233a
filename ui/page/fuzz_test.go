package page_test

import (
	"net/url"
	"strings"
	"testing"

	"hairpin/ui/page"
)

// FuzzQuery checks that every URL is an error, or a query that can be encoded and parsed without
// change.
func FuzzQuery(f *testing.F) {
	f.Add("from=host/node-a&to=svc/default/web&proto=udp&family=6&node-port=1&live=1")
	f.Add("from=outside&client=203.0.113.7&to=&address=10.96.0.1:80")
	f.Add("from=%00%ff&to=%3Cscript%3E")
	f.Fuzz(func(t *testing.T, text string) {
		values, err := url.ParseQuery(text)
		if err != nil {
			return
		}
		q, bad := page.ParseQuery(values)
		if bad != nil {
			if bad.Error() == "" {
				t.Errorf("%q: nothing is said", text)
			}
			return
		}
		written := q.Encode()
		if strings.ContainsAny(written, "<>\"' \n\x00") {
			t.Errorf("%q: written as %q", text, written)
		}
		if values, err = url.ParseQuery(written); err != nil {
			t.Fatalf("%q: written as %q: %v", text, written, err)
		}
		if again, bad := page.ParseQuery(values); bad != nil || again != q {
			t.Errorf("%q: %+v came back as %+v, %v", text, q, again, bad)
		}
	})
}
