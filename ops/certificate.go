package ops

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"os"
	"sync"
	"time"
)

// selfSignedFor is how long a self-signed certificate is valid. It is replaced after half of that
// time.
const selfSignedFor = 365 * 24 * time.Hour

// certificate is the certificate of a TLS server: from files, which may be renewed at any time, or
// made in memory.
type certificate struct {
	file, key string // empty: made in memory

	mu      sync.Mutex
	current *tls.Certificate
	made    time.Time // of the file, or when it was made in memory
}

// ServerTLS returns the configuration of a TLS server with a certificate from PEM files, or,
// without files, one that it signs itself.
func ServerTLS(file, key string) *tls.Config {
	c := &certificate{file: file, key: key}
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.get(time.Now()) }}
}

func (c *certificate) get(now time.Time) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file == "" {
		if c.current != nil && now.Sub(c.made) < selfSignedFor/2 {
			return c.current, nil
		}
		made, err := selfSigned(now)
		if err != nil {
			return nil, fmt.Errorf("make a certificate: %w", err)
		}
		c.current, c.made = made, now
		return made, nil
	}
	info, statErr := os.Stat(c.file)
	if statErr == nil && c.current != nil && info.ModTime().Equal(c.made) {
		return c.current, nil
	}
	read, err := tls.LoadX509KeyPair(c.file, c.key)
	if err != nil {
		if c.current != nil { // the files are being replaced
			return c.current, nil
		}
		return nil, fmt.Errorf("certificate of the TLS server: %w", err)
	}
	c.current = &read
	if statErr == nil {
		c.made = info.ModTime()
	}
	return c.current, nil
}

func selfSigned(now time.Time) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: "hairpin on " + host},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(selfSignedFor), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, DNSNames: []string{host},
		BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
