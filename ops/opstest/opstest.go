// Package opstest opens connections of slow clients, for tests of limited listeners.
package opstest

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// Dial connects from an address of 127.0.0.0/8.
func Dial(t *testing.T, from, to string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 5 * time.Second}
	c, err := d.DialContext(t.Context(), "tcp4", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// SlowClients opens connections that send text, and then nothing, and stay open. All are of one
// address.
func SlowClients(t *testing.T, to, text string, many int) []net.Conn {
	t.Helper()
	var all []net.Conn
	for range many {
		c := Dial(t, "127.0.0.66", to)
		_, _ = io.WriteString(c, text) // it may be closed already
		all = append(all, c)
	}
	return all
}

// Closed reports whether the other side closes a connection within a time.
func Closed(c net.Conn, within time.Duration) bool {
	_ = c.SetReadDeadline(time.Now().Add(within))
	_, err := io.Copy(io.Discard, c)
	var slow net.Error
	return !errors.As(err, &slow) || !slow.Timeout()
}

// CertificatePEM returns the content of a certificate's file.
func CertificatePEM(t *testing.T, c *tls.Certificate) []byte {
	t.Helper()
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]})
}

// KeyPEM returns the content of the file of a certificate's key.
func KeyPEM(t *testing.T, c *tls.Certificate) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}
