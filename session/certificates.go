package session

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Certificates are what sslrootcert, sslcert and sslkey name files of, as PEM
// text, for a configuration that holds them itself: nothing is written to disk.
type Certificates struct {
	Root      string // of the authorities that may have signed the server's
	Cert, Key string // the client's; both or none
	Password  string // of the key, if it is encrypted (RFC 1421)
}

// apply has the connection attempts that use TLS use the certificates.
func (c *Certificates) apply(cfg *pgx.ConnConfig) error {
	if c == nil {
		return nil
	}
	var roots *x509.CertPool
	if c.Root != "" {
		roots = x509.NewCertPool()
		if !roots.AppendCertsFromPEM([]byte(c.Root)) {
			return errors.New("the CA certificate is no certificate in PEM form")
		}
	}
	var client []tls.Certificate
	if c.Cert != "" || c.Key != "" {
		pair, err := c.client()
		if err != nil {
			return err
		}
		client = []tls.Certificate{pair}
	}
	for _, h := range hostsOf(cfg) {
		if h.TLSConfig == nil {
			continue
		}
		if roots != nil {
			h.TLSConfig.RootCAs = roots // read when the server is verified, also for verify-ca
		}
		if client != nil {
			h.TLSConfig.Certificates = client
		}
	}
	return nil
}

// client gives the client's certificate with its key. What is wrong with it is
// told without a piece of either.
func (c *Certificates) client() (tls.Certificate, error) {
	if c.Cert == "" || c.Key == "" {
		return tls.Certificate{}, errors.New("a client certificate and its key belong together: one of them is missing")
	}
	key := []byte(c.Key)
	block, _ := pem.Decode(key)
	if block == nil {
		return tls.Certificate{}, errors.New("the client key is no key in PEM form")
	}
	// As pgx reads a key's file.
	if x509.IsEncryptedPEMBlock(block) { //nolint:staticcheck // libpq's keys are encrypted so
		plain, err := x509.DecryptPEMBlock(block, []byte(c.Password)) //nolint:staticcheck // likewise
		if err != nil {
			return tls.Certificate{}, fmt.Errorf("the client key: %w", err)
		}
		key = pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: plain})
	}
	pair, err := tls.X509KeyPair([]byte(c.Cert), key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("the client certificate and its key: %w", err)
	}
	return pair, nil
}
