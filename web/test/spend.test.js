import assert from "node:assert/strict";
import { test } from "node:test";
import { money, spent } from "../src/spend.js";

const spend = (unit, slot_hours, peak_slot_hours, paid = null) => ({ spend: { unit, slot_hours, peak_slot_hours, money: paid } });
const euros = (used, against) => ({ currency: "EUR", used, against });

test("hours are added by unit, and money by currency", () => {
  const found = spent([
    spend("slot", 60, 100, euros(6, 10)),
    spend("slot", 15, 50, euros(1.5, 5)),
    spend("instance", 4, 4),
    { spend: null },
    {},
  ]);
  assert.deepEqual(found, [
    "2 applications used 75 of the 150 slot-hours of a static peak, 50\u00a0% less.",
    "1 application used 4 of the 4 instance-hours of a static peak.",
    "That is 7.50 of 15.00 EUR.",
  ]);
  assert.deepEqual(spent([{}, { spend: null }]), []);
  assert.equal(money(euros(1234.5, 0)), "1,234.50 of 0.00 EUR");
});
