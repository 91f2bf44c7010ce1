// Slot-hours and money of many applications, in words. Pure.

import { counted, number, share } from "./words.js";

const AMOUNT = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });

export const money = ({ used, against, currency }) => `${AMOUNT.format(used)} of ${AMOUNT.format(against)} ${currency}`;

/**
 * Sentences on what summaries have used since their policies act, against their static peaks: one for each unit, and one for each
 * currency. Empty where nothing is counted.
 */
export function spent(summaries) {
  const units = new Map();
  const currencies = new Map();
  for (const { spend } of summaries) {
    if (!spend) continue;
    const sum = units.get(spend.unit) ?? { used: 0, against: 0, count: 0 };
    units.set(spend.unit, { used: sum.used + spend.slot_hours, against: sum.against + spend.peak_slot_hours, count: sum.count + 1 });
    if (!spend.money) continue;
    const { currency, used, against } = spend.money;
    const all = currencies.get(currency) ?? { used: 0, against: 0 };
    currencies.set(currency, { used: all.used + used, against: all.against + against });
  }
  const hours = [...units].map(([unit, { used, against, count }]) => {
    const saved = against > 0 ? Math.max(0, 1 - used / against) : 0;
    const less = saved >= 0.005 ? `, ${share(saved)} less` : "";
    return `${counted(count, "application")} used ${number(used)} of the ${number(against)} ${unit}-hours of a static peak${less}.`;
  });
  const paid = [...currencies].map(([currency, sums]) => `That is ${money({ ...sums, currency })}.`);
  return [...hours, ...paid];
}
